// Free ports out of a range: each is tried once, from another place each time, until one is free.
#include "transport/joining/free_port.h"

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "base/error.h"
#include "transport/links/socket.h"

namespace gradring::testing::free_port_test {
namespace {

using transport::AddressTaken;
using transport::Fd;
using transport::listen_at_free_port;
using transport::PortRange;

// What was tried before all were found taken.
std::vector<int> all_tried(const PortRange& ports, std::string& why) {
  std::vector<int> tried;
  try {
    listen_at_free_port("here", ports, [&](int port) -> Fd {
      tried.push_back(port);
      throw AddressTaken("taken");
    });
  } catch (const InvalidArgument& error) {
    why = error.what();
  }
  return tried;
}

TEST_CASE("every port of a range is tried once, and the error says which and how many") {
  std::string why;
  const std::vector<int> tried = all_tried({7000, 7004}, why);
  CHECK(tried.size() == 5);
  CHECK(std::set<int>(tried.begin(), tried.end()) == std::set<int>{7000, 7001, 7002, 7003, 7004});
  CHECK(why.find("here: all 5 ports of GRADRING_PORTS=7000-7004 are taken; end what") !=
        std::string::npos);
}

TEST_CASE("processes that start at once do not begin at the same port") {
  std::string why;
  std::set<int> first;
  for (int process = 0; process < 64; ++process) first.insert(all_tried({1, 1000}, why).front());
  CHECK(first.size() > 32);
}

TEST_CASE("without a range the kernel is asked, and what is no lack of a port ends the search") {
  std::vector<int> asked;
  listen_at_free_port("here", {}, [&](int port) {
    asked.push_back(port);
    return Fd();
  });
  CHECK(asked == std::vector<int>{0});
  int times = 0;
  CHECK_THROWS_WITH_AS(listen_at_free_port("here", {7000, 7004},
                                           [&](int) -> Fd {
                                             ++times;
                                             throw InvalidArgument("no address of this host");
                                           }),
                       "no address of this host", InvalidArgument);
  CHECK(times == 1);
}

}  // namespace
}  // namespace gradring::testing::free_port_test
