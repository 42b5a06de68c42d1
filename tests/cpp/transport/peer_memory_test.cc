// Reading another process's memory: what is there, or a plain no.
#include "transport/links/peer_memory.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <vector>

namespace gradring::testing::peer_memory_test {
namespace {

using transport::MemoryCard;
using transport::MemoryToken;
using transport::PeerMemory;

std::uint64_t address_of(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

// A process that has this one's memory as it is now, and does nothing.
class Sleeper {
 public:
  Sleeper() : process_(::fork()) {
    while (process_ == 0) ::pause();
  }
  ~Sleeper() { kill(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  pid_t process() const { return process_; }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }

 private:
  pid_t process_;
};

TEST_CASE("peer memory: reads what another process has, until that one ends") {
  std::vector<std::byte> theirs(3 << 20);
  for (std::size_t i = 0; i < theirs.size(); ++i) theirs[i] = static_cast<std::byte>(i * 7 % 251);
  const std::vector<std::byte> expected = theirs;
  const MemoryToken token;
  MemoryCard card = token.card();
  Sleeper sleeper;
  std::fill(theirs.begin(), theirs.end(), std::byte{0});  // Here, not there.
  card.process = sleeper.process();
  const auto memory = PeerMemory::open(card);
  REQUIRE(memory);
  std::vector<std::byte> got(theirs.size());
  CHECK(memory->read(got.data(), address_of(theirs.data()), got.size()));
  CHECK(got == expected);
  CHECK(memory->read(got.data(), address_of(theirs.data()), 0));
  sleeper.kill();
  CHECK_FALSE(memory->read(got.data(), address_of(theirs.data()), got.size()));
  CHECK_FALSE(PeerMemory::open(card));
}

TEST_CASE("peer memory: a card that does not say the truth opens nothing") {
  const MemoryToken token;
  const MemoryCard card = token.card();
  CHECK(PeerMemory::open(card));
  MemoryCard other = card;
  other.token[3] ^= std::byte{1};
  CHECK_FALSE(PeerMemory::open(other));
  other = card;
  other.address += 1;
  CHECK_FALSE(PeerMemory::open(other));
  for (const std::int64_t process : {0, -1}) {
    other = card;
    other.process = process;
    CHECK_FALSE(PeerMemory::open(other));
  }
}

TEST_CASE("peer memory: bytes that may not be read are a no, not a fault") {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const pages =
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(::mprotect(static_cast<std::byte*>(pages) + page, page, PROT_NONE) == 0);
  const MemoryToken token;
  const auto own = PeerMemory::open(token.card());
  REQUIRE(own);
  std::vector<std::byte> got(2 * page);
  CHECK(own->read(got.data(), address_of(pages), page));
  CHECK_FALSE(own->read(got.data(), address_of(pages), 2 * page));
  CHECK_FALSE(own->read(got.data(), 16, 1));
  ::munmap(pages, 2 * page);
}

}  // namespace
}  // namespace gradring::testing::peer_memory_test
