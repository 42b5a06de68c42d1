// PeerMemory: reads the memory of another process of this host while that one does nothing for it
// (Linux's process_vm_readv). The kernel allows it to whom it would allow to trace the other: the
// same user, unless kernel.yama.ptrace_scope or a container's rules say no, or the two have
// different process numbers for one another. So nobody relies on it who has not tried. What it
// reads is what the other process has there at that moment: when it may change is for the two to
// agree on. Callable from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace gradring::transport {

// What a process shows to the others: where something lies that they can only know by reading it.
struct MemoryCard {
  std::int64_t process = 0;
  std::uint64_t address = 0;
  std::array<std::byte, 16> token{};
};

// The token that this process's card speaks of, for as long as this lives.
class MemoryToken {
 public:
  MemoryToken();
  MemoryCard card() const;

 private:
  std::unique_ptr<std::array<std::byte, 16>> token_;
};

class PeerMemory {
 public:
  // None if what `card` speaks of cannot be read, or is not what it says.
  static std::optional<PeerMemory> open(const MemoryCard& card);

  // False if not all of it could be read, or the process is another one by now; dst then has some
  // of it, or none.
  bool read(std::byte* dst, std::uint64_t address, std::size_t bytes) const;

 private:
  explicit PeerMemory(const MemoryCard& card) : card_(card) {}

  MemoryCard card_;
};

}  // namespace gradring::transport
