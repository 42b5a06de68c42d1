#include "transport/peer_memory.h"

#include <sys/random.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"

namespace gradring::transport {
namespace {

// The kernel moves at most 2 GiB - 4 KiB a call.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

bool read_process(std::int64_t process, std::byte* dst, std::uint64_t address, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t most = std::min(bytes, kMostBytes);
    const iovec to{dst, most};
    // An address of the other process, never followed in this one.
    const iovec from{reinterpret_cast<void*>(address), most};  // NOLINT(performance-no-int-to-ptr)
    const ssize_t got = ::process_vm_readv(static_cast<pid_t>(process), &to, 1, &from, 1, 0);
    if (got <= 0) return false;
    dst += got;
    address += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

MemoryToken::MemoryToken() : token_(std::make_unique<std::array<std::byte, 16>>()) {
  if (::getrandom(token_->data(), token_->size(), 0) != static_cast<ssize_t>(token_->size()))
    throw InternalError("getrandom gave no bytes");
}

MemoryCard MemoryToken::card() const {
  return {::getpid(), reinterpret_cast<std::uintptr_t>(token_->data()), *token_};
}

std::optional<PeerMemory> PeerMemory::open(const MemoryCard& card) {
  std::array<std::byte, 16> token{};
  const bool is_known = card.process > 0 &&
                        read_process(card.process, token.data(), card.address, token.size()) &&
                        token == card.token;
  if (!is_known) return std::nullopt;
  return PeerMemory(card.process);
}

bool PeerMemory::read(std::byte* dst, std::uint64_t address, std::size_t bytes) const {
  return read_process(process_, dst, address, bytes);
}

}  // namespace gradring::transport
