#include "fake_nccl/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fake {
namespace {

Layout* map(const std::string& name) {
  const char* folder = std::getenv("FAKE_NCCL_FOLDER");
  const std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/" + name;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(Layout)) != 0) std::abort();
  void* memory = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<Layout*>(memory);
}

}  // namespace

Segment::Segment(const std::string& name, int rank, int size, const std::atomic<bool>& is_aborted)
    : layout_(map(name)), rank_(rank), size_(size), is_aborted_(is_aborted) {}

void Segment::wait_until(const std::function<bool()>& is_so) const {
  while (!is_so()) {
    if (is_aborted_.load()) throw Aborted{};
    ::usleep(50);
  }
}

void Segment::join() {
  layout_->joined.fetch_add(1);
  wait_until([&] { return layout_->joined.load() == static_cast<std::uint32_t>(size_); });
}

std::vector<std::vector<char>> Segment::exchange(const std::string& call, const char* data,
                                                 const std::vector<std::size_t>& bytes) {
  std::vector<std::vector<char>> all(bytes.size());
  const std::size_t most = *std::max_element(bytes.begin(), bytes.end());
  Slot& mine = layout_->slots[rank_];
  for (std::size_t at = 0; at == 0 || at < most; at += kChunk) {
    // Everybody has read what I gave before.
    for (int peer = 0; peer < size_; ++peer)
      wait_until([&] { return layout_->slots[peer].taken.load() >= round_; });
    const std::size_t own = bytes[static_cast<std::size_t>(rank_)];
    if (at < own) std::memcpy(mine.data, data + at, std::min(kChunk, own - at));
    std::strncpy(mine.call, call.c_str(), sizeof(mine.call) - 1);
    mine.posted.store(++round_);
    for (int peer = 0; peer < size_; ++peer) {
      const Slot& slot = layout_->slots[peer];
      wait_until([&] { return slot.posted.load() >= round_; });
      wait_until([&] { return call.compare(0, sizeof(mine.call) - 1, slot.call) == 0; });
      std::vector<char>& got = all[static_cast<std::size_t>(peer)];
      const std::size_t theirs = bytes[static_cast<std::size_t>(peer)];
      if (at < theirs) got.insert(got.end(), slot.data, slot.data + std::min(kChunk, theirs - at));
    }
    mine.taken.store(round_);
  }
  return all;
}

// One chunk further, if the other end is ready for it.
bool Segment::step(Message& message) {
  Mailbox& box =
      message.is_recv ? layout_->mail[message.peer][rank_] : layout_->mail[rank_][message.peer];
  const std::size_t bytes = std::min(kChunk, message.bytes - message.moved);
  const bool is_full = box.posted.load() != box.taken.load();
  if (message.is_recv != is_full) return false;
  char* const at = message.data + message.moved;
  std::memcpy(message.is_recv ? at : box.data, message.is_recv ? box.data : at, bytes);
  (message.is_recv ? box.taken : box.posted).fetch_add(1);
  message.moved += bytes;
  return true;
}

void Segment::deliver(std::vector<Message> messages) {
  const auto is_open = [](const Message& message) { return message.moved < message.bytes; };
  while (std::any_of(messages.begin(), messages.end(), is_open))
    wait_until([&] {
      bool has_moved = false;
      for (Message& message : messages)
        if (is_open(message) && step(message)) has_moved = true;
      return has_moved;
    });
}

}  // namespace fake
