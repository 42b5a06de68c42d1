#include "transport/links/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/error.h"
#include "transport/links/resolve.h"
#include "transport/links/socket.h"

namespace gradring::transport {
namespace {

// What the machine's limits refuse is no bug of ours.
[[noreturn]] void raise_refused(const char* what, std::size_t bytes) {
  const int error = errno;
  const std::string text = str(what, " ", bytes, " bytes of shared memory: ", errno_text(error));
  if (!is_shortage(error)) throw InternalError(text);
  const std::string hint = limit_hint(error);
  throw DeviceError(
      str("this process cannot: ", text,
          hint.empty() ? "; see its ulimit -v and the limits of the control group" : hint));
}

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which Debian 11's headers lack.

std::byte* map(int fd, std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) raise_refused("mapping", bytes);
  return static_cast<std::byte*>(address);
}

// Writes to each page what it has: for kernels that do not know kPopulateWrite. In one step, as
// other threads may be writing something else.
void touch(std::byte* begin, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += SharedMemory::page_bytes()) {
    const std::atomic_ref<std::byte> first(begin[at]);
    std::byte seen = first.load(std::memory_order_relaxed);
    while (!first.compare_exchange_weak(seen, seen, std::memory_order_relaxed)) {
    }
  }
}

}  // namespace

std::size_t SharedMemory::page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

bool SharedMemory::is_possible(std::size_t bytes) {
  struct sysinfo host{};
  if (::sysinfo(&host) == 0 && bytes / host.mem_unit > host.totalram + host.totalswap) return false;
  constexpr int kNothingIsTaken = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const address = ::mmap(nullptr, bytes, PROT_NONE, kNothingIsTaken, -1, 0);
  if (address == MAP_FAILED) return false;
  ::munmap(address, bytes);
  return true;
}

SharedMemory SharedMemory::create(std::size_t bytes) {
  Fd fd(::memfd_create("gradring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    raise_refused("creating", bytes);
  // Nobody can cut the file under our feet, which would turn a store into SIGBUS.
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  std::byte* data = map(fd.get(), bytes);
  return {std::move(fd), data, bytes};
}

SharedMemory SharedMemory::attach(Fd fd, std::size_t bytes) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes)
    throw ProtocolError(
        str("shared memory from a peer has ", status.st_size, " bytes, expected ", bytes));
  // A file that cannot be sealed at all has -1, which has every bit.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    throw ProtocolError("shared memory from a peer is not sealed");
  std::byte* data = map(fd.get(), bytes);
  return {std::move(fd), data, bytes};
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    unmap();
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() {
  unmap();
}

void SharedMemory::take_pages(const std::byte* begin, std::size_t bytes) const {
  const Pages pages = pages_of(begin, bytes);
  ::madvise(data_ + pages.first, pages.bytes, kPopulateWrite);
}

bool SharedMemory::detach(const std::byte* begin, std::size_t bytes) const {
  const Pages pages = pages_of(begin, bytes);
  // A private mapping of the same file shows what the file has until a page is written to. Made
  // elsewhere first: where the kernel refuses to map in place it may have unmapped what was there.
  void* const own = ::mmap(nullptr, pages.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd_.get(),
                           static_cast<off_t>(pages.first));
  if (own == MAP_FAILED) return false;
  std::byte* const to = data_ + pages.first;
  if (::mremap(own, pages.bytes, pages.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
    ::munmap(own, pages.bytes);
    return false;
  }
  if (::madvise(to, pages.bytes, kPopulateWrite) == 0) return true;
  if (errno != EINVAL) return false;
  touch(to, pages.bytes);
  return true;
}

SharedMemory::Pages SharedMemory::pages_of(const std::byte* begin, std::size_t bytes) const {
  const auto at = static_cast<std::size_t>(begin - data_);
  const std::size_t first = at / page_bytes() * page_bytes();
  return {first, std::min(bytes_, at + bytes) - first};
}

void SharedMemory::unmap() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace gradring::transport
