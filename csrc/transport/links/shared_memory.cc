#include "transport/links/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "transport/links/socket.h"

namespace gradring::transport {
namespace {

// What the machine's limits refuse is no bug of ours.
[[noreturn]] void raise_refused(const char* what, std::size_t bytes) {
  const int error = errno;
  const std::string text = str(what, " ", bytes, " bytes of shared memory: ", errno_text(error));
  if (!is_shortage(error)) throw InternalError(text);
  throw DeviceError(str("this process cannot: ", text,
                        "; see its ulimit -n and -v and the limits of the control group"));
}

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which Debian 11's headers lack.

std::byte* map(int fd, std::size_t bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) raise_refused("mapping", bytes);
  return static_cast<std::byte*>(address);
}

}  // namespace

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
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = static_cast<std::size_t>(begin - data_) / page * page;
  const std::size_t end = std::min(bytes_, static_cast<std::size_t>(begin - data_) + bytes);
  ::madvise(data_ + first, end - first, kPopulateWrite);
}

void SharedMemory::unmap() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace gradring::transport
