// Names under a deadline: a name server that says nothing keeps nobody, and its late answer is of
// use.
#include "transport/links/resolve.h"

#include <doctest/doctest.h>

#include <arpa/inet.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <thread>

namespace gradring::testing::resolve_test {
namespace {

using transport::AddressList;
using transport::HostPort;

constexpr Millis kPlenty{20000};

Time soon() {
  return Clock::now() + Millis{50};
}

TEST_CASE("a look-up that takes too long is left behind, and found again when it is over") {
  const HostPort slow{"slow.example", 7};
  std::promise<void> server;
  const std::shared_future<void> answers = server.get_future().share();
  std::atomic<int> times = 0;
  const auto look_up = [&times, answers](const HostPort&) {
    ++times;
    answers.wait();
    return transport::resolve({"127.0.0.1", 7}, AI_NUMERICHOST);
  };
  std::string why;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const Time before = Clock::now();
    CHECK(transport::resolve_by(slow, soon(), why, look_up) == nullptr);
    CHECK(Clock::now() - before >= Millis{50});
    CHECK(why.find("slow.example' takes too long") != std::string::npos);
  }
  std::thread reader([&] {
    const AddressList list = transport::resolve_by(slow, Clock::now() + kPlenty, why, look_up);
    CHECK((list != nullptr && list->ai_family == AF_INET));
  });
  server.set_value();
  reader.join();
  CHECK(times <= 2);  // The last one may have come after the answer to the others.
}

TEST_CASE("numbers need nobody, and a name that is none is told so") {
  std::string why;
  const AddressList list = transport::resolve_by({"127.0.0.1", 80}, Clock::now(), why);
  REQUIRE(list != nullptr);
  CHECK(ntohs(reinterpret_cast<const sockaddr_in&>(*list->ai_addr).sin_port) == 80);
  const auto nobody = [](const HostPort&) { return AddressList(); };
  CHECK(transport::resolve_by({"no.example", 1}, Clock::now() + kPlenty, why, nobody) == nullptr);
  CHECK(why == "the name 'no.example' does not resolve");
}

TEST_CASE("who has no descriptors left is told whose limit it is: the process's or the host's") {
  const AddressList list = transport::resolve({"127.0.0.1", 7}, AI_NUMERICHOST);
  CHECK(transport::connect_problem(EMFILE, *list) ==
        "Too many open files; see this process's ulimit -n");
  CHECK(transport::connect_problem(ENFILE, *list) ==
        "Too many open files in system; see this host's fs.file-max");
  CHECK(transport::limit_hint(ENFILE, "its") == "; see its host's fs.file-max");
}

}  // namespace
}  // namespace gradring::testing::resolve_test
