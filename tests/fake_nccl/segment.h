// How the fake NCCL's ranks, processes of one machine, reach each other: a file in
// $FAKE_NCCL_FOLDER, named by the unique id and mapped by all. Each rank has a slot that all others
// read, and each pair a mailbox each way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fake {

inline constexpr std::size_t kChunk = 16 << 10;
inline constexpr int kMostRanks = 4;

struct Slot {
  std::atomic<std::uint64_t> posted;  // Rounds.
  std::atomic<std::uint64_t> taken;   // Rounds that this rank has read of all others.
  char call[96];
  char data[kChunk];
};

struct Mailbox {
  std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> taken;
  char data[kChunk];
};

struct Layout {
  std::atomic<std::uint32_t> joined;
  Slot slots[kMostRanks];
  Mailbox mail[kMostRanks][kMostRanks];  // From, to.
};

struct Aborted {};

struct Message {
  bool is_recv;
  char* data;
  std::size_t bytes;
  int peer;
  std::size_t moved = 0;
};

class Segment {
 public:
  Segment(const std::string& name, int rank, int size, const std::atomic<bool>& is_aborted);

  // All block until every rank has come, and throw Aborted if that is said before.
  void join();
  // What every rank has given, where each says how much that is. Hangs, as NCCL does, where the
  // ranks make different calls.
  std::vector<std::vector<char>> exchange(const std::string& call, const char* data,
                                          const std::vector<std::size_t>& bytes);
  void deliver(std::vector<Message> messages);
  void wait_until(const std::function<bool()>& is_so) const;

 private:
  bool step(Message& message);

  Layout* layout_;
  int rank_;
  int size_;
  const std::atomic<bool>& is_aborted_;
  std::uint64_t round_ = 0;
};

}  // namespace fake
