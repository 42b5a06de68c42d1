// Communicators of ranks that are threads, over real TCP and shared memory: every operation gives
// the documented bits, calls keep their order, and what goes wrong reaches everybody by name.
#include "collectives/communicator/communicator.h"

#include <doctest/doctest.h>

#include <atomic>
#include <numeric>
#include <string>
#include <thread>

#include "support/collectives/operations.h"
#include "support/run_ranks.h"

namespace gradring::testing::communicator_test {
namespace {

using collectives::Algorithm;
using collectives::Communicator;

using Ints = std::vector<std::int64_t>;

constexpr TransportMode kModes[] = {TransportMode::kTcp, TransportMode::kShm};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs all of them on one communicator; how often any rank got other bits than it must.
int wrong_results(const Job& job, const std::vector<Prepared>& cases) {
  std::atomic<int> wrong{0};
  run_ranks(job, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    for (const Prepared& each : cases) {
      Memory mine = each.all[rank];
      collectives::Operation operation = operation_of(each.c, comm.rank(), mine);
      operation.algorithm = each.c.algorithm;
      comm.run(operation, kPlenty);
      if (!mine.output_is(each.expected[rank])) ++wrong;
    }
  });
  return wrong;
}

// Keeps this rank in the world until `peer` leaves it, so that it is not this one's end that the
// other meets.
void stay_until_closed(Communicator& comm, Rank peer) {
  Ints data(1);
  CHECK_THROWS_AS(recv(comm, data, peer), Error);
}

TEST_CASE("every operation gives the documented bits, over TCP and through shared memory") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    std::vector<Prepared> cases;
    for (const OpKind op : {OpKind::kBarrier, OpKind::kAllReduce, OpKind::kReduceScatter,
                            OpKind::kAllGather, OpKind::kBroadcast, OpKind::kReduce,
                            OpKind::kGather, OpKind::kScatter, OpKind::kAllToAll}) {
      for (const std::uint64_t count : {0, 1, 5, 1003, 70'001}) {
        PlanCase c{.op = op, .world_size = ranks, .count = count, .root = ranks - 1};
        c.is_in_place = count % 2 == 0 && op != OpKind::kAllToAll;
        cases.push_back(prepared(c));
      }
    }
    for (const TransportMode mode : kModes) {
      CAPTURE(static_cast<int>(mode));
      CHECK(wrong_results({.ranks = ranks, .mode = mode}, cases) == 0);
    }
    const Job encrypted{
        .ranks = ranks, .mode = TransportMode::kTcp, .encryption = transport::Encryption::kAlways};
    CHECK(wrong_results(encrypted, cases) == 0);
  }
}

TEST_CASE("every algorithm that is asked for by name gives the bits of its order") {
  std::vector<Prepared> cases;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDoubling, Algorithm::kHalving,
                                    Algorithm::kDirect, Algorithm::kGather}) {
    for (const std::uint64_t count : {3, 1000, 300'001})
      cases.push_back(prepared({.world_size = 4, .count = count}, algorithm));
  }
  for (const TransportMode mode : kModes) {
    CAPTURE(static_cast<int>(mode));
    CHECK(wrong_results({.ranks = 4, .mode = mode}, cases) == 0);
  }
}

TEST_CASE(
    "asynchronous operations run in the order they were submitted, blocking ones behind them") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 3, .mode = mode}, [](Communicator& comm) {
      // Each doubles and adds on the same memory, so that any other order shows.
      Ints data(100, comm.rank());
      std::vector<std::shared_ptr<collectives::Work>> works;
      for (int i = 0; i < 10; ++i)
        works.push_back(comm.submit(operation_on(OpKind::kAllReduce, data), kPlenty));
      all_reduce(comm, data);
      for (auto work = works.rbegin(); work != works.rend(); ++work) comm.wait(**work, kPlenty);
      std::int64_t expected = 0 + 1 + 2;
      for (int i = 0; i < 10; ++i) expected *= 3;
      CHECK((data == Ints(100, expected)));
    });
  }
}

TEST_CASE("threads of one rank may call at the same time as long as all ranks call the same") {
  run_ranks({.ranks = 2}, [](Communicator& comm) {
    std::atomic<std::int64_t> sum{0};
    const auto errors = run_threads(4, [&](int) {
      for (int i = 0; i < 20; ++i) {
        Ints data(8, 1);
        all_reduce(comm, data);
        sum += data[7];
      }
    });
    for (const auto& error : errors) CHECK(error == nullptr);
    CHECK(sum == 4 * 20 * 2);
  });
}

TEST_CASE("subgroup is called by its members alone, in the order of ranks they give") {
  for (const TransportMode mode : {TransportMode::kTcp, TransportMode::kShm}) {
    run_ranks({.ranks = 4, .mode = mode}, [](Communicator& comm) {
      if (comm.rank() == 1) return;
      for (const char* name : {"7", "8"}) {
        const auto child = comm.subgroup({3, 0, 2}, name);
        CHECK(child->world_size() == 3);
        CHECK(child->rank() == (comm.rank() == 3 ? 0 : comm.rank() == 0 ? 1 : 2));
        Ints data(5, comm.rank());
        all_reduce(*child, data);
        CHECK(data == Ints(5, 5));
        child->close();
      }
      CHECK_THROWS_AS(comm.subgroup({1}, "9"), InvalidArgument);
      CHECK_THROWS_AS(comm.subgroup({comm.rank(), comm.rank()}, "9"), InvalidArgument);
      CHECK_THROWS_AS(comm.subgroup({comm.rank(), 4}, "9"), InvalidArgument);
    });
  }
}

TEST_CASE("split makes one communicator a color, ordered by key, and none for a negative color") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 5, .mode = mode}, [](Communicator& comm) {
      const Rank world_rank = comm.rank();
      const auto child = comm.split(world_rank == 4 ? -1 : world_rank % 2, -world_rank, kPlenty);
      CHECK((child == nullptr) == (world_rank == 4));
      if (child) {
        CHECK(child->world_size() == 2);
        CHECK(child->rank() == (world_rank < 2 ? 1 : 0));
        Ints data(3, world_rank);
        all_reduce(*child, data);
        CHECK((data == Ints(3, world_rank % 2 == 0 ? 2 : 4)));
        child->close();
      }
      Ints data(3, 1);
      all_reduce(comm, data);  // The parent goes on.
      CHECK((data == Ints(3, 5)));
    });
  }
}

TEST_CASE("a rank that is done may leave at once; the others still get all of its bytes") {
  for (const TransportMode mode : kModes) {
    for (int round = 0; round < 5; ++round) {
      run_ranks({.ranks = 3, .mode = mode}, [](Communicator& comm) {
        Ints data(30'000, comm.rank() == 1 ? 77 : 0);
        collectives::Operation operation = operation_on(OpKind::kBroadcast, data);
        operation.request.root = 1;
        comm.run(operation, kPlenty);
        CHECK((data == Ints(30'000, 77)));
      });
    }
  }
}

TEST_CASE("different calls are a Mismatch on every rank that takes part, and close it") {
  for (const TransportMode mode : kModes) {
    const std::vector<Failure> ends =
        end_of_ranks({.ranks = 3, .mode = mode}, [](Communicator& comm) {
          Ints data(comm.rank() == 1 ? 11 : 10, 1);
          const Ints before = data;
          try {
            all_reduce(comm, data);
          } catch (const Mismatch&) {
            CHECK((data == before));
            CHECK(comm.is_closed());
            CHECK_THROWS_AS(all_reduce(comm, data), Closed);
            throw;
          }
        });
    for (const Failure& end : ends) {
      CAPTURE(end.text);
      CHECK(end.kind == ErrorKind::kMismatch);
      CHECK(contains(end.text, "int64 x 10"));
      CHECK(contains(end.text, "int64 x 11"));
    }
  }
}

TEST_CASE("losing a peer that leaves fails every other rank with PeerLost that names it") {
  for (const TransportMode mode : kModes) {
    const std::vector<Failure> ends =
        end_of_ranks({.ranks = 4, .mode = mode}, [](Communicator& comm) {
          barrier(comm);
          if (comm.rank() == 2) return;
          Ints data(1000, 1);
          all_reduce(comm, data);
        });
    for (const Rank rank : {0, 1, 3}) {
      const Failure& end = ends[static_cast<std::size_t>(rank)];
      CAPTURE(rank);
      CAPTURE(end.text);
      CHECK(end.kind == ErrorKind::kPeerLost);
      CHECK(end.rank == 2);
      CHECK(contains(end.text, "all_reduce"));
    }
  }
}

TEST_CASE("after a loss the survivors shrink and go on") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 4, .mode = mode}, [](Communicator& comm) {
      Ints data(10, 1);
      if (comm.rank() == 1) return;
      CHECK_THROWS_AS(all_reduce(comm, data), PeerLost);
      const auto rest = comm.shrink(kPlenty);
      CHECK(rest->world_size() == 3);
      CHECK(rest->rank() == (comm.rank() == 0 ? 0 : comm.rank() - 1));
      data.assign(10, 5);
      all_reduce(*rest, data);
      CHECK((data == Ints(10, 15)));
      CHECK_THROWS_AS(barrier(comm), Closed);
      rest->close();
    });
  }
}

TEST_CASE("a rank that never calls is a TimedOut that says what was waited for") {
  for (const TransportMode mode : kModes) {
    const std::vector<Failure> ends =
        end_of_ranks({.ranks = 2, .mode = mode}, [](Communicator& comm) {
          Ints data(10, 1);
          barrier(comm);
          if (comm.rank() == 0) all_reduce(comm, data, Millis{200});
          while (!comm.is_closed()) std::this_thread::yield();
          all_reduce(comm, data);
        });
    CAPTURE(ends[0].text);
    CHECK(ends[0].kind == ErrorKind::kTimedOut);
    CHECK(contains(ends[0].text, "all_reduce #2"));
    CHECK(contains(ends[0].text, "0.2 s"));
    CHECK(ends[1].kind == ErrorKind::kTimedOut);
  }
}

TEST_CASE("close() lets a thread that waits in an operation go with Closed") {
  for (const TransportMode mode : kModes) {
    run_ranks({.ranks = 2, .mode = mode}, [](Communicator& comm) {
      barrier(comm);
      if (comm.rank() == 1) {
        stay_until_closed(comm, 0);
        return;
      }
      std::exception_ptr error;
      std::atomic<bool> has_begun{false};
      std::thread waiting([&] {
        Ints data(10, 1);
        try {
          has_begun = true;
          all_reduce(comm, data);
        } catch (...) {
          error = std::current_exception();
        }
      });
      while (!has_begun) std::this_thread::yield();
      comm.close();
      waiting.join();
      REQUIRE(error);
      CHECK_THROWS_AS(std::rethrow_exception(error), Closed);
    });
  }
}

TEST_CASE("work that was not done at close() is cancelled, and the wait for it ends") {
  const std::vector<Failure> ends = end_of_ranks({.ranks = 2}, [](Communicator& comm) {
    barrier(comm);
    if (comm.rank() == 1) return stay_until_closed(comm, 0);
    Ints data(10, 1);
    std::vector<std::shared_ptr<collectives::Work>> works;
    for (int i = 0; i < 5; ++i)
      works.push_back(comm.submit(operation_on(OpKind::kAllReduce, data), kPlenty));
    comm.close();
    for (const auto& work : works) {
      CHECK(work->is_done());
      CHECK_THROWS_AS(work->raise_if_failed(), Error);
    }
  });
  CAPTURE(ends[0].text);
  CHECK(ends[0].kind == ErrorKind::kNone);
}

TEST_CASE("an invalid call is refused before anything is sent, and the communicator goes on") {
  run_ranks({.ranks = 2, .mode = TransportMode::kTcp}, [](Communicator& comm) {
    Ints data(10, 1);
    collectives::Operation operation = operation_on(OpKind::kBroadcast, data);
    operation.request.root = 2;
    CHECK_THROWS_AS(comm.run(operation, kPlenty), InvalidArgument);
    operation = operation_on(OpKind::kAllReduce, data);
    operation.algorithm = Algorithm::kFlat;
    CHECK_THROWS_AS(comm.run(operation, kPlenty), InvalidArgument);
    all_reduce(comm, data);
    CHECK((data == Ints(10, 2)));
  });
}

TEST_CASE("two communicators of one process do not disturb each other") {
  run_ranks({.ranks = 4}, [](Communicator& comm) {
    const auto even_odd = comm.split(comm.rank() % 2, 0, kPlenty);
    const auto halves = comm.split(comm.rank() / 2, 0, kPlenty);
    const auto errors = run_threads(2, [&](int which) {
      for (int i = 0; i < 50; ++i) {
        Ints data(64, comm.rank());
        Communicator& mine = which == 0 ? *even_odd : *halves;
        all_reduce(mine, data);
        const Rank rank = comm.rank();
        const std::int64_t other = which == 0 ? (rank + 2) % 4 : rank ^ 1;
        CHECK((data == Ints(64, rank + other)));
      }
    });
    for (const auto& error : errors) CHECK(error == nullptr);
    barrier(comm);
    even_odd->close();
    halves->close();
  });
}

}  // namespace
}  // namespace gradring::testing::communicator_test
