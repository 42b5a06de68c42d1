// Ranks that meet: everybody gets the same table, and who does not fit, does not come or does not
// know the secret is named.
#include "transport/world.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "support/collectives/operations.h"
#include "support/run_ranks.h"
#include "transport/joining/control_frames.h"

namespace gradring::testing::world_test {
namespace {

using transport::JoinOptions;
using transport::World;

std::string text_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Joins all ranks at once, each with its options, and lets them leave again.
std::vector<std::exception_ptr> join_all(const std::vector<JoinOptions>& options) {
  return run_threads(static_cast<int>(options.size()), [&](int i) {
    const auto world = World::join(options[static_cast<std::size_t>(i)]);
    world->enter();
    world->leave();
  });
}

TEST_CASE("everybody gets the same table of ranks") {
  const std::vector<JoinOptions> options = options_for({.ranks = 6});
  std::vector<std::vector<std::string>> tables(6);
  const auto errors = run_threads(6, [&](int i) {
    const auto index = static_cast<std::size_t>(i);
    const auto world = World::join(options[index]);
    world->enter();
    for (Rank rank = 0; rank < 6; ++rank) tables[index].push_back(world->member(rank).tcp_address);
    CHECK(world->rank() == i);
    CHECK(world->world_size() == 6);
    CHECK(world->shares_memory(0, 5));
    world->leave();
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
  for (const auto& table : tables) CHECK(table == tables[0]);
}

TEST_CASE("everybody goes by the costs that rank 0 brought, whatever else was brought") {
  std::vector<JoinOptions> options = options_for({.ranks = 3});
  for (std::size_t i = 0; i < options.size(); ++i) {
    options[i].costs.tcp = LinkCosts{100.0 + static_cast<double>(i), 2, 3, 4};
    if (i != 0) options[i].costs.shared_memory = LinkCosts{5, 6, 7, 8};
  }
  const auto errors = run_threads(3, [&](int i) {
    const auto world = World::join(options[static_cast<std::size_t>(i)]);
    world->enter();
    const CostProfile& costs = world->costs();
    CHECK(costs.tcp.value_or(LinkCosts{}).latency_us == 100);
    CHECK(costs.tcp.value_or(LinkCosts{}).further_link == 4);
    CHECK(!costs.shared_memory);
    world->leave();
  });
  for (const auto& error : errors) CHECK(text_of(error) == "");
}

TEST_CASE("a world of one needs nobody and opens nothing") {
  JoinOptions options;
  options.rendezvous = {"name.that.does.not.resolve.invalid", 1};
  const auto world = World::join(options);
  CHECK(world->world_size() == 1);
  world->enter();
  world->leave();
}

TEST_CASE("a rank that does not come is named when the time is up") {
  std::vector<JoinOptions> options = options_for({.ranks = 4, .timeout = Millis{1000}});
  options.pop_back();
  options.erase(options.begin() + 1);
  const auto errors = join_all(options);
  REQUIRE(errors[0]);
  CHECK_THROWS_AS(std::rethrow_exception(errors[0]), TimedOut);
  CAPTURE(text_of(errors[0]));
  CHECK(contains(text_of(errors[0]), "rank 1, 3 of a world of 4 had not joined"));
  REQUIRE(errors[1]);  // Rank 2 hears that it waits for others, not that it is at fault.
}

TEST_CASE("a rank that joined and went again is named, and not as one that never came") {
  std::vector<JoinOptions> options = options_for({.ranks = 3, .timeout = Millis{1500}});
  options.pop_back();
  options[1].timeout = Millis{300};
  const auto errors = join_all(options);
  REQUIRE(errors[0]);
  CAPTURE(text_of(errors[0]));
  CHECK(contains(text_of(errors[0]),
                 "rank 2 of a world of 3 had not joined, rank 1 had joined "
                 "and left: it ended, or gave up"));
}

TEST_CASE("a rank whose rank 0 does not answer is told where it looked") {
  std::vector<JoinOptions> options = options_for({.ranks = 2, .timeout = Millis{200}});
  ::close(options[0].listen_fd);
  JoinOptions alone = options[1];
  try {
    World::join(alone);
    FAIL("it joined nobody");
  } catch (const TimedOut& error) {
    CHECK(contains(error.what(), transport::to_text(alone.rendezvous)));
    CHECK(contains(error.what(), "rank 0 does not answer"));
  }
}

TEST_CASE("a rank is told so where something takes its connection and says nothing") {
  std::vector<JoinOptions> options = options_for({.ranks = 2, .timeout = Millis{200}});
  const transport::Fd mute(options[0].listen_fd);  // Listens; nobody accepts.
  try {
    World::join(options[1]);
    FAIL("it joined nobody");
  } catch (const TimedOut& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(contains(text, "rank 1: rank 0 does not answer at "));
    CHECK(contains(text, transport::to_text(options[1].rendezvous)));
    CHECK(contains(text, "says nothing; is rank 0 started"));
  }
}

TEST_CASE("a rank whose time is over while rank 0 answers is told so as any other") {
  const std::vector<JoinOptions> options = options_for({.ranks = 2, .timeout = Millis{300}});
  std::atomic<bool> is_over{false};
  const auto errors = run_threads(2, [&](int rank) {
    if (rank == 1) {
      try {
        World::join(options[1]);
      } catch (...) {
        is_over = true;
        throw;
      }
      return;
    }
    transport::Door door(transport::adopt_listener(options[0].listen_fd), transport::Fd(),
                         options[0].credentials, 0);
    std::vector<transport::Arrival> arrivals;
    while (!is_over && arrivals.empty()) arrivals = door.work(Clock::now());
    REQUIRE(arrivals.size() == 1);
    const std::uint32_t length = 100;  // And nothing behind it.
    arrivals[0].connection.send_all(std::as_bytes(std::span(&length, 1)),
                                    Clock::now() + Millis{300});
    while (!is_over) std::this_thread::yield();
  });
  CHECK(text_of(errors[0]) == "");
  REQUIRE(errors[1]);
  CHECK_THROWS_AS(std::rethrow_exception(errors[1]), TimedOut);
  CHECK(contains(text_of(errors[1]), "rank 1: joined at "));
}

TEST_CASE("a rank that gives up while all are welcomed keeps nobody else out") {
  transport::Meeting meeting;
  meeting.members.resize(3);
  std::array<transport::Connection, 3> theirs;
  for (const Rank rank : {1, 2}) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0);
    meeting.controls.emplace(rank, transport::Fd(ends[0]));
    theirs[static_cast<std::size_t>(rank)] = transport::Fd(ends[1]);
  }
  theirs[1].reset();
  const Time deadline = Clock::now() + Millis{20'000};
  transport::welcome(meeting, deadline);
  const wire::Message heard = transport::recv_frame(theirs[2], deadline);
  CHECK(std::get_if<wire::Welcome>(&heard) != nullptr);
  CHECK(transport::has_hung_up(meeting.controls.at(1).get()));  // What the monitor will see.
}

TEST_CASE("a rank with another world size is refused and told both sizes") {
  std::vector<JoinOptions> options = options_for({.ranks = 2, .timeout = Millis{500}});
  options[1].world_size = 3;
  const auto errors = join_all(options);
  REQUIRE(errors[1]);
  CHECK_THROWS_AS(std::rethrow_exception(errors[1]), InvalidArgument);
  CHECK(contains(text_of(errors[1]), "world size 3"));
  CHECK(contains(text_of(errors[1]), "rank 0 with 2"));
}

TEST_CASE("a rank that would not find the others of its host is refused and told why") {
  using transport::TransportMode;
  for (const TransportMode mode : {TransportMode::kTcp, TransportMode::kAuto}) {
    std::vector<JoinOptions> options =
        options_for({.ranks = 2, .mode = TransportMode::kShm, .timeout = Millis{500}});
    options[1].mode = mode;
    const auto errors = join_all(options);
    CHECK((errors[1] != nullptr) == (mode == TransportMode::kTcp));
    if (!errors[1]) continue;
    CHECK_THROWS_AS(std::rethrow_exception(errors[1]), InvalidArgument);
    CHECK(contains(text_of(errors[1]), "rank 1 was started with transport tcp"));
    CHECK(contains(text_of(errors[1]), "rank 0 of the same host with shm"));
  }
  // What another host does is its own affair.
  std::vector<JoinOptions> options = options_for({.ranks = 2});
  options[0].mode = TransportMode::kTcp;
  options[1].host_label = "another";
  for (const auto& error : join_all(options)) CHECK(error == nullptr);
}

TEST_CASE("of two processes with one rank the second is refused, and the job goes on") {
  std::vector<JoinOptions> options = options_for({.ranks = 3});
  options.insert(options.begin() + 1, options[1]);
  std::atomic<int> joined{0};
  // The double comes while rank 2 is still missing, or afterwards: then it waits for the next world
  // at this address, until there is no more to see.
  for (const std::size_t same : {1u, 2u})
    options[same].check_interrupt = [&] {
      if (joined == 3) throw Interrupted("a next world would come now");
    };
  const auto errors = run_threads(4, [&](int i) {
    const auto world = World::join(options[static_cast<std::size_t>(i)]);
    ++joined;
    world->enter();
    world->leave();
  });
  CHECK(joined == 3);
  CHECK(errors[0] == nullptr);
  CHECK(errors[3] == nullptr);
  CHECK((errors[1] == nullptr) != (errors[2] == nullptr));
}

TEST_CASE("a rank outside the world is refused") {
  std::vector<JoinOptions> options = options_for({.ranks = 2, .timeout = Millis{500}});
  options[1].rank = 7;
  const auto errors = join_all(options);
  REQUIRE(errors[1]);
  CHECK_THROWS_AS(std::rethrow_exception(errors[1]), InvalidArgument);
  CHECK(contains(text_of(errors[1]), "rank 7 does not exist in a world of 2"));
}

TEST_CASE("a rank with another secret gets an AuthError that names the variable") {
  std::vector<JoinOptions> options = options_for({.ranks = 2, .timeout = Millis{500}});
  options[1].credentials = {"another secret"};
  const auto errors = join_all(options);
  REQUIRE(errors[1]);
  CHECK_THROWS_AS(std::rethrow_exception(errors[1]), AuthError);
  CHECK(contains(text_of(errors[1]), "GRADRING_SECRET"));
  REQUIRE(errors[0]);
  CHECK_THROWS_AS(std::rethrow_exception(errors[0]), TimedOut);
}

TEST_CASE("ranks that do not all encrypt get an error that names the variable, not a hang") {
  for (const int plain : {0, 1}) {
    CAPTURE(plain);
    std::vector<JoinOptions> options = options_for({.ranks = 2,
                                                    .mode = TransportMode::kTcp,
                                                    .timeout = Millis{2000},
                                                    .encryption = transport::Encryption::kAlways});
    options[static_cast<std::size_t>(plain)].credentials.encryption = transport::Encryption::kNever;
    const auto errors = run_threads(2, [&](int rank) {
      const auto comm = collectives::Communicator::join(options[static_cast<std::size_t>(rank)]);
      barrier(*comm);
    });
    const auto& error = errors[static_cast<std::size_t>(plain)];
    REQUIRE(error);
    CHECK(contains(text_of(error), "GRADRING_TLS is off here"));
  }
}

TEST_CASE("a wait for others can be interrupted") {
  std::vector<JoinOptions> options = options_for({.ranks = 2});
  int calls = 0;
  options[0].check_interrupt = [&] {
    if (++calls == 2) throw Interrupted("Ctrl-C");
  };
  CHECK_THROWS_AS(World::join(options[0]), Interrupted);
}

TEST_CASE("so can that of a rank that has joined encrypted") {
  std::vector<JoinOptions> options = options_for(
      {.ranks = 3, .mode = TransportMode::kTcp, .encryption = transport::Encryption::kAlways});
  std::atomic<bool> has_left{false};
  int calls = 0;
  options[0].check_interrupt = [&] {
    if (has_left) throw Interrupted("Ctrl-C");
  };
  options[1].check_interrupt = [&] {
    if (++calls == 3) throw Interrupted("Ctrl-C");
  };
  const auto errors = run_threads(2, [&](int rank) {
    try {
      World::join(options[static_cast<std::size_t>(rank)]);
    } catch (...) {
      has_left = true;
      throw;
    }
  });
  REQUIRE(errors[1]);
  CHECK_THROWS_AS(std::rethrow_exception(errors[1]), Interrupted);
}

// Rank 0's connection to a rank that has come and then does nothing: nobody answers its door.
template <typename Connect>
void connect_to_a_frozen_rank(Millis heartbeat_timeout, const Connect& connect) {
  for (const auto mode : {transport::TransportMode::kTcp, transport::TransportMode::kShm}) {
    CAPTURE(static_cast<int>(mode));
    std::vector<JoinOptions> options =
        options_for({.ranks = 2, .mode = mode, .heartbeat_timeout = heartbeat_timeout});
    transport::Meeting frozen;
    const auto errors = run_threads(2, [&](int i) {
      if (i == 1) {
        frozen = transport::meet(options[1]);
        return;
      }
      const auto world = World::join(options[0]);
      world->enter();
      const auto group = world->make_group(1, {0, 1});
      const Time before = Clock::now();
      connect(*world, *group);
      CHECK(Clock::now() - before < Millis{5000});  // A connection may take 10 s.
      world->leave();
    });
    for (const auto& error : errors) CHECK(text_of(error) == "");
  }
}

TEST_CASE("a new connection to a rank that is frozen ends with the heartbeat's verdict") {
  connect_to_a_frozen_rank(Millis{200}, [](World& world, transport::Group& group) {
    try {
      world.connect(group, 1, 0, Millis{30000});
      FAIL("somebody answered");
    } catch (const PeerLost& lost) {
      CHECK(lost.rank == 1);
      CHECK(contains(lost.what(), "no heartbeat"));
    }
  });
}

TEST_CASE("a new connection takes no longer than the operation's timeout, and names it") {
  connect_to_a_frozen_rank(Millis{30000}, [](World& world, transport::Group& group) {
    const Time before = Clock::now();
    try {
      world.connect(group, 1, 0, Millis{250});
      FAIL("somebody answered");
    } catch (const TimedOut& error) {
      CHECK(contains(error.what(), "within its timeout of 0.25 s: no answer from rank 1"));
    }
    CHECK(Clock::now() - before >= Millis{250});
  });
}

}  // namespace
}  // namespace gradring::testing::world_test
