// Where newcomers wait: in their order, not after they have gone, and with the listener at which
// the next ones look for as long as one of the worlds lives.
#include "transport/joining/lobby.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>

#include "base/config.h"
#include "transport/links/socket.h"

namespace gradring::transport::lobby_test {
namespace {

// One that waits in there, and what it waits with.
struct Guest {
  explicit Guest(Lobby& lobby, Rank name = -1) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
    own = Fd(ends[0]);
    Intro intro{Purpose::kNewcomer};
    intro.to = name;
    lobby.take_in({Fd(ends[1]), intro});
  }
  Fd own;
};

std::vector<Rank> names(const std::vector<Arrival>& arrivals) {
  std::vector<Rank> found;
  for (const Arrival& arrival : arrivals) found.push_back(arrival.intro.to);
  return found;
}

struct Opened {
  Opened() {
    lobby.enter(this, [] {});
  }
  Lobby lobby;
};

TEST_CASE("newcomers are taken in the order in which they came, and go back to where they were") {
  Opened house;
  const Guest first(house.lobby, 1);
  const Guest second(house.lobby, 2);
  const Guest third(house.lobby, 3);
  CHECK(house.lobby.count() == 3);
  std::vector<Arrival> taken = house.lobby.take(2);
  CHECK(names(taken) == std::vector<Rank>{1, 2});
  CHECK(house.lobby.count() == 1);
  house.lobby.put_back(std::move(taken));
  CHECK(names(house.lobby.take(9)) == std::vector<Rank>{1, 2, 3});
}

TEST_CASE("a newcomer that has gone is forgotten, and makes room where the lobby is full") {
  Opened house;
  std::vector<Guest> guests;
  for (std::size_t i = 0; i < limits::kNewcomers; ++i) guests.emplace_back(house.lobby);
  CHECK_FALSE(house.lobby.has_room());
  guests.pop_back();
  CHECK(house.lobby.has_room());
  CHECK(house.lobby.count() == limits::kNewcomers - 1);
}

TEST_CASE("a listener stays open while it goes from one world to the next, and no longer") {
  Lobby lobby;
  int wakes = 0;
  const int older = 0;
  const int newer = 0;
  lobby.enter(&older, [] {});
  lobby.enter(&newer, [&] { ++wakes; });
  const Guest guest(lobby);
  Fd listener = listen_tcp("127.0.0.1", 0, 4);
  const HostPort address = local_address(listener.get());
  lobby.leave(&older, std::move(listener));
  CHECK(wakes == 1);
  std::string why;
  CHECK(connect_tcp(address, Clock::now() + Millis{5000}, why));
  Fd taken = lobby.take_listener();
  CHECK(taken);
  CHECK_FALSE(lobby.take_listener());
  CHECK(lobby.count() == 1);

  lobby.leave(&newer, std::move(taken));
  CHECK_FALSE(connect_tcp(address, Clock::now() + Millis{5000}, why));
  CHECK(has_hung_up(guest.own.get()));
}

}  // namespace
}  // namespace gradring::transport::lobby_test
