// Whether anybody listens at a door: a refusal is told, an answer and a silence are not.
#include "transport/membership/probes.h"

#include <doctest/doctest.h>

#include "base/clock.h"
#include "transport/links/socket.h"

namespace gradring::transport::probes_test {
namespace {

constexpr Millis kPlenty{20'000};

wire::Member at(const HostPort& address) {
  wire::Member member;
  member.tcp_address = to_text(address);
  return member;
}

// Lets them work until none is under way.
std::vector<Rank> refused_by_all(Probes& probes) {
  std::vector<Rank> refused;
  const Time deadline = Clock::now() + kPlenty;
  while (Clock::now() < deadline) {
    for (const Rank rank : probes.work()) refused.push_back(rank);
    std::vector<pollfd> polls;
    probes.add_polls(polls);
    if (polls.empty()) break;
    ::poll(polls.data(), polls.size(), 100);
  }
  return refused;
}

TEST_CASE("of several doors those are told where nobody listens, and each once") {
  const Fd open = listen_tcp("127.0.0.1", 0, 16);
  HostPort closed;
  {
    const Fd listener = listen_tcp("127.0.0.1", 0, 16);
    closed = local_address(listener.get());
  }
  Probes probes;
  probes.ask(3, at(local_address(open.get())));
  probes.ask(4, at(closed));
  CHECK(refused_by_all(probes) == std::vector<Rank>{4});
  CHECK(probes.work().empty());
  probes.ask(4, at(closed));  // The next beat's.
  CHECK(refused_by_all(probes) == std::vector<Rank>{4});
}

TEST_CASE("a door that is asked already is not asked twice") {
  const Fd open = listen_tcp("127.0.0.1", 0, 16);
  Probes probes;
  probes.ask(1, at(local_address(open.get())));
  probes.ask(1, at(local_address(open.get())));
  std::vector<pollfd> polls;
  probes.add_polls(polls);
  CHECK(polls.size() == 1);
}

}  // namespace
}  // namespace gradring::transport::probes_test
