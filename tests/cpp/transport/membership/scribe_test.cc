// The scribe does jobs one after the other, and all that were given to it before it stops.
#include "transport/membership/scribe.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace gradring::transport::scribe_test {
namespace {

TEST_CASE("jobs are done in order, all of those posted before stop() and none after it") {
  Scribe scribe;
  std::vector<int> done;
  for (int i = 0; i < 100; ++i) scribe.post([&done, i] { done.push_back(i); });
  scribe.stop();
  REQUIRE(done.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(done[static_cast<std::size_t>(i)] == i);
  scribe.post([&done] { done.push_back(-1); });
  scribe.stop();
  CHECK(done.size() == 100);
}

TEST_CASE("a repeated job is done at once and again after each pause, others between") {
  Scribe scribe;
  std::atomic<int> repeated{0};
  std::atomic<int> posted{0};
  scribe.repeat(Millis{1}, [&] { ++repeated; });
  while (repeated < 3) std::this_thread::yield();
  scribe.post([&] { ++posted; });
  while (posted < 1 || repeated < 6) std::this_thread::yield();
  scribe.stop();
  const int last = repeated;
  CHECK(last >= 6);
  CHECK(repeated == last);
}

TEST_CASE("more jobs than can wait are dropped, not kept without bound") {
  Scribe scribe;
  std::atomic<bool> may_go_on{false};
  std::atomic<int> done{0};
  scribe.post([&] {
    while (!may_go_on) std::this_thread::yield();
  });
  for (int i = 0; i < 10'000; ++i) scribe.post([&] { ++done; });
  may_go_on = true;
  scribe.stop();
  CHECK(done > 0);
  CHECK(done < 10'000);
}

}  // namespace
}  // namespace gradring::transport::scribe_test
