// Messages with tags: matched by tag, in order within one, kept when they come early, and refused
// when they do not fit.
#include "collectives/communicator/point_to_point.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <thread>

#include "base/config.h"
#include "support/collectives/operations.h"
#include "support/run_ranks.h"

namespace gradring::testing::point_to_point_test {
namespace {

using collectives::Communicator;

using Ints = std::vector<std::int64_t>;

constexpr TransportMode kModes[] = {TransportMode::kTcp, TransportMode::kShm};

Ints ramp(std::int64_t first, std::size_t count) {
  Ints values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_CASE("a message arrives as it was sent, whatever its size") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 2, .mode = mode}, [](Communicator& comm) {
      for (const std::size_t count : {0, 1, 1000, 400'000}) {
        Ints data = comm.rank() == 0 ? ramp(5, count) : Ints(count);
        if (comm.rank() == 0)
          send(comm, data, 1);
        else
          recv(comm, data, 0);
        CHECK((data == ramp(5, count)));
      }
    });
  }
}

TEST_CASE("two ranks may send to each other first, at any size") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 2, .mode = mode}, [](Communicator& comm) {
      const Rank other = 1 - comm.rank();
      Ints out = ramp(comm.rank(), 500'000);
      Ints in(500'000);
      send(comm, out, other);
      recv(comm, in, other);
      CHECK((in == ramp(other, 500'000)));
    });
  }
}

TEST_CASE("messages are matched by tag, and those of one tag keep their order") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 2, .mode = mode}, [](Communicator& comm) {
      if (comm.rank() == 0) {
        for (const std::int64_t tag : {1, 2, 1, 3}) {
          static thread_local std::int64_t number = 0;
          Ints data(10, ++number);
          send(comm, data, 1, static_cast<std::int32_t>(tag));
        }
        return;
      }
      const auto next = [&](std::int32_t tag) {
        Ints data(10);
        recv(comm, data, 0, tag);
        return data[9];
      };
      CHECK(next(3) == 4);
      CHECK(next(1) == 1);
      CHECK(next(1) == 3);
      CHECK(next(2) == 2);
    });
  }
}

TEST_CASE("a rank can send to itself") {
  run_ranks({.ranks = 1}, [](Communicator& comm) {
    Ints out = ramp(3, 50);
    send(comm, out, 0, 9);
    Ints in(50);
    recv(comm, in, 0, 9);
    CHECK((in == out));
  });
}

TEST_CASE("transfers in the background go on while their threads do something else") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 3, .mode = mode}, [](Communicator& comm) {
      std::vector<Ints> outs;
      std::vector<Ints> ins;
      for (Rank peer = 0; peer < 3; ++peer) {
        outs.push_back(ramp(comm.rank() * 10 + peer, 20'000));
        ins.emplace_back(20'000);
      }
      std::vector<std::shared_ptr<collectives::Transfer>> transfers;
      for (Rank peer = 0; peer < 3; ++peer) {
        if (peer == comm.rank()) continue;
        const auto index = static_cast<std::size_t>(peer);
        transfers.push_back(message(true, peer, 4, ins[index]));
        transfers.push_back(message(false, peer, 4, outs[index]));
      }
      for (const auto& transfer : transfers) comm.point_to_point().start(transfer, true);
      barrier(comm);  // On links of its own.
      for (const auto& transfer : transfers) comm.point_to_point().wait(transfer, kPlenty);
      for (Rank peer = 0; peer < 3; ++peer)
        if (peer != comm.rank())
          CHECK((ins[static_cast<std::size_t>(peer)] == ramp(peer * 10 + comm.rank(), 20'000)));
    });
  }
}

TEST_CASE("threads of one rank receive from different peers at the same time") {
  run_ranks({.ranks = 4}, [](Communicator& comm) {
    if (comm.rank() != 0) {
      for (int i = 0; i < 20; ++i) {
        Ints data(100, comm.rank() * 100 + i);
        send(comm, data, 0);
      }
      return;
    }
    const auto errors = run_threads(3, [&](int thread) {
      for (int i = 0; i < 20; ++i) {
        Ints data(100);
        recv(comm, data, thread + 1);
        CHECK((data == Ints(100, (thread + 1) * 100 + i)));
      }
    });
    for (const auto& error : errors) CHECK(error == nullptr);
  });
}

TEST_CASE("a message that does not fit is a Mismatch that shows both sides") {
  for (const TransportMode mode : kModes) {
    const std::vector<Failure> ends =
        end_of_ranks({.ranks = 2, .mode = mode}, [](Communicator& comm) {
          Ints data(comm.rank() == 0 ? 10 : 9);
          if (comm.rank() == 0)
            send(comm, data, 1);
          else
            recv(comm, data, 0);
        });
    CAPTURE(ends[1].text);
    CHECK(ends[1].kind == ErrorKind::kMismatch);
    CHECK(ends[1].text.find("int64 x 10") != std::string::npos);
    CHECK(ends[1].text.find("int64 x 9") != std::string::npos);
  }
}

TEST_CASE(
    "more early messages than are kept hold the sender back, and a recv says which one is next") {
  run_ranks({.ranks = 2, .mode = TransportMode::kTcp}, [](Communicator& comm) {
    constexpr std::size_t kCount = limits::kUnexpectedBytes / sizeof(std::int64_t) * 3 / 5;
    if (comm.rank() == 0) {
      std::vector<Ints> data(3, Ints(kCount, 1));
      std::vector<std::shared_ptr<collectives::Transfer>> transfers;
      for (std::int32_t tag = 0; tag < 3; ++tag) {
        transfers.push_back(message(false, 1, tag, data[static_cast<std::size_t>(tag)]));
        comm.point_to_point().start(transfers.back(), true);
      }
      barrier(comm);
      CHECK_THROWS_AS(comm.point_to_point().wait(transfers[2], kPlenty), TimedOut);
      return;
    }
    Ints data(kCount);
    barrier(comm);  // The deadline is for the messages, not for the memory that they need.
    try {
      recv(comm, data, 0, 2, Millis{1500});
      FAIL("the third message came past the second");
    } catch (const TimedOut& error) {
      const std::string text = error.what();
      CAPTURE(text);
      CHECK(text.find("its next message has tag 1") != std::string::npos);
    }
  });
}

// One thread of a rank waits for a message that does not come, another one is busy with rank 2.
TEST_CASE("a message that does not come is not waited for any longer because others do") {
  for (const bool in_background : {false, true}) {
    CAPTURE(in_background);
    std::atomic<bool> is_busy{false};
    std::atomic<bool> is_over{false};
    const Time patience = Clock::now() + kPlenty;
    const auto talk = [&](Communicator& comm, Rank with) {
      Ints data(10);
      while (!is_over && Clock::now() < patience) {
        send(comm, data, with);
        recv(comm, data, with);
        is_busy = true;
      }
    };
    const std::vector<Failure> ends = end_of_ranks({.ranks = 3}, [&](Communicator& comm) {
      if (comm.rank() == 1) barrier(comm, 2 * kPlenty);
      if (comm.rank() == 2) talk(comm, 0);
      if (comm.rank() != 0) return;
      run_threads(2, [&](int thread) {
        if (thread == 1) return talk(comm, 2);
        while (!is_busy) std::this_thread::yield();
        Ints data(10);
        const auto awaited = message(true, 1, 0, data);
        comm.point_to_point().start(awaited, in_background);
        CHECK_THROWS_AS(comm.point_to_point().wait(awaited, Millis{300}), TimedOut);
        is_over = true;
      });
      CHECK(Clock::now() < patience);
    });
    CHECK(ends[1].kind == ErrorKind::kTimedOut);
  }
}

TEST_CASE("waiting for a message from a rank that leaves is a PeerLost that names it") {
  for (const TransportMode mode : kModes) {
    const std::vector<Failure> ends =
        end_of_ranks({.ranks = 3, .mode = mode}, [](Communicator& comm) {
          barrier(comm);
          Ints data(10);
          if (comm.rank() != 2) recv(comm, data, 2);
        });
    for (const std::size_t rank : {0, 1}) {
      CAPTURE(ends[rank].text);
      CHECK(ends[rank].kind == ErrorKind::kPeerLost);
      CHECK(ends[rank].rank == 2);
    }
  }
}

TEST_CASE("a recv from anyone takes every rank's message once, and says who sent it") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 4, .mode = mode}, [](Communicator& comm) {
      Ints data(1000, comm.rank());
      if (comm.rank() != 0) {
        send(comm, data, 0, 5);
        return;
      }
      std::vector<Ints> got(3, Ints(1000));
      std::vector<std::shared_ptr<collectives::Transfer>> recvs;
      for (Ints& one : got) {
        recvs.push_back(message(true, collectives::kAnyPeer, 5, one));
        comm.point_to_point().start(recvs.back(), true);
      }
      Ints senders;
      for (std::size_t i = 0; i < 3; ++i) {
        comm.point_to_point().wait(recvs[i], kPlenty);
        CHECK(got[i] == Ints(1000, recvs[i]->peer));
        senders.push_back(recvs[i]->peer);
      }
      std::sort(senders.begin(), senders.end());
      CHECK(senders == ramp(1, 3));
    });
  }
}

TEST_CASE("of a recv from anyone and one from the sender the one posted first gets the message") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 2, .mode = mode}, [](Communicator& comm) {
      if (comm.rank() == 1) {
        for (std::int64_t number : {1, 2}) {
          Ints data(1, number);
          send(comm, data, 0);
        }
        barrier(comm);
        return;
      }
      Ints any(1);
      Ints own(1);
      const auto from_any = message(true, collectives::kAnyPeer, 0, any);
      const auto from_one = message(true, 1, 0, own);
      comm.point_to_point().start(from_any, true);
      comm.point_to_point().start(from_one, true);
      comm.point_to_point().wait(from_one, kPlenty);
      comm.point_to_point().wait(from_any, kPlenty);
      CHECK(any[0] == 1);
      CHECK(own[0] == 2);
      barrier(comm);
    });
  }
}

TEST_CASE("a recv from anyone ends with PeerLost when everybody else has left") {
  for (const TransportMode mode : kModes) {
    const std::vector<Failure> ends =
        end_of_ranks({.ranks = 3, .mode = mode}, [](Communicator& comm) {
          barrier(comm);
          Ints data(1);
          if (comm.rank() == 0) recv(comm, data, collectives::kAnyPeer);
        });
    CHECK(ends[0].kind == ErrorKind::kPeerLost);
  }
}

}  // namespace
}  // namespace gradring::testing::point_to_point_test
