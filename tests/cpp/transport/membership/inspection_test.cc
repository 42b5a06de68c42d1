// A rank tells its record and its time to who knows the secret, whatever its own threads do.
#include "transport/membership/inspection.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/ticks.h"
#include "support/collectives/operations.h"
#include "support/run_ranks.h"
#include "transport/joining/handshake.h"
#include "transport/links/socket.h"

namespace gradring::testing::inspection_test {
namespace {

using collectives::Communicator;
using transport::ClockSample;
using transport::Inspection;

const std::string kSecret = "a secret of this test";  // As run_ranks has it.

std::string address_of(const Communicator& comm, Rank rank) {
  const std::string text = comm.describe(rank);  // "rank 1 (127.0.0.1:41822)"
  const std::size_t begin = text.find('(') + 1;
  return text.substr(begin, text.size() - begin - 1);
}

TEST_CASE("a rank that is stuck in a call tells its record to who asks") {
  std::atomic<bool> has_seen{false};
  run_ranks({.ranks = 2}, [&](Communicator& comm) {
    barrier(comm);
    if (comm.rank() == 1) {
      const std::string asked = address_of(comm, 0);
      std::string record;
      while (record.find("\"awaited\":1") == std::string::npos)
        record = Inspection(asked, kSecret, Clock::now() + kPlenty).record();
      CHECK(record.find("\"rank\":0,") != std::string::npos);
      CHECK(record.find("\"failure\":null") != std::string::npos);
      has_seen = true;
    }
    barrier(comm);
    CHECK(has_seen);
  });
}

TEST_CASE("who does not know the secret learns nothing") {
  run_ranks({.ranks = 2}, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      CHECK_THROWS_AS(Inspection(address_of(comm, 0), {"another"}, Clock::now() + kPlenty),
                      AuthError);
    }
    barrier(comm);
  });
}

TEST_CASE("a guest that asks nonsense is sent away, and the next one is answered") {
  run_ranks({.ranks = 2}, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      std::string why;
      const Time deadline = Clock::now() + kPlenty;
      transport::Connection fd =
          transport::connect_tcp(transport::parse_host_port(address_of(comm, 0)), deadline, why);
      REQUIRE(fd);
      transport::shake_hands(fd, {kSecret}, {transport::Purpose::kInspect, 0, -1, -1, 0, {}},
                             deadline);
      std::array<std::byte, 8> nonsense{};
      nonsense.fill(std::byte{0xff});
      fd.send_all(nonsense, deadline);
      CHECK_THROWS_AS(fd.recv_all(nonsense, deadline), ProtocolError);
      CHECK(!Inspection(address_of(comm, 0), {kSecret}, deadline).record().empty());
    }
    barrier(comm);
  });
}

// Asks for the time again and again until it is sent away; true where that was before `deadline`.
bool ask_until_sent_away(Inspection& guest, Time deadline) {
  try {
    while (Clock::now() < deadline) guest.clock(16);
  } catch (const ProtocolError&) {
    return Clock::now() < deadline;
  }
  return false;
}

TEST_CASE("a guest that never stops asking is sent away, and the next one is answered") {
  run_ranks({.ranks = 2}, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      const Time deadline = Clock::now() + kPlenty;
      Inspection guest(address_of(comm, 0), {kSecret}, deadline);
      CHECK(ask_until_sent_away(guest, deadline));
      CHECK(!Inspection(address_of(comm, 0), {kSecret}, Clock::now() + kPlenty).record().empty());
    }
    barrier(comm);
  });
}

TEST_CASE("guests that never stop asking do not keep a rank from leaving") {
  constexpr int kGuests = 3;
  run_ranks({.ranks = 2}, [&](Communicator& comm) {
    if (comm.rank() == 0) {
      barrier(comm);
      const Time begin = Clock::now();
      comm.close();
      CHECK(seconds_between(begin, Clock::now()) < 4);  // Each of them may stay for 3 s otherwise.
      return;
    }
    const Time deadline = Clock::now() + kPlenty;
    std::vector<std::unique_ptr<Inspection>> guests;
    for (int i = 0; i < kGuests; ++i)
      guests.push_back(std::make_unique<Inspection>(address_of(comm, 0), kSecret, deadline));
    barrier(comm);
    const auto errors = run_threads(kGuests, [&](int i) {
      CHECK(ask_until_sent_away(*guests[static_cast<std::size_t>(i)], deadline));
    });
    for (const auto& error : errors) CHECK(error == nullptr);
  });
}

TEST_CASE("an offset comes from the quickest answer, and its error covers what it cannot know") {
  // Their clock is 1000 ahead. The slow answer spent all its time on the way there.
  const std::array<ClockSample, 3> samples = {
      ClockSample{0, 1500, 500}, ClockSample{600, 1610, 620}, ClockSample{700, 1700, 900}};
  const transport::ClockOffset clock = transport::estimate_offset(samples);
  CHECK(clock.offset == 1000);
  CHECK(clock.error == 11);
}

TEST_CASE("two ranks of one host find that they have one clock") {
  run_ranks({.ranks = 2}, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      const auto clock =
          Inspection(address_of(comm, 0), {kSecret}, Clock::now() + kPlenty).clock(16);
      CHECK(std::abs(clock.offset) <= clock.error);
    }
    barrier(comm);
  });
}

}  // namespace
}  // namespace gradring::testing::inspection_test
