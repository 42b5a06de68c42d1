// How a save shares a shard's time with training.
#include "ps/server/save_pace.h"

#include <doctest/doctest.h>

namespace gradring::testing::save_pace_test {

namespace {

using namespace gradring::ps;

constexpr std::size_t kBytes = 2'000'000;
const Time kNow = Time{} + Millis{1'000'000};

TEST_CASE("a save is in no hurry while somebody trains, and still faster than 500 MB/s") {
  SavePace pace;
  Time now = kNow;
  for (int buffer = 0; buffer < 500; ++buffer) now = pace.next(kBytes, now, now - Millis{900});
  const double megabytes_a_second = 500 * kBytes / 1e6 / seconds_between(kNow, now);
  CHECK(megabytes_a_second > 500);
  CHECK(megabytes_a_second < 600);
}

TEST_CASE("a save goes on at once while nobody trains") {
  SavePace pace;
  Time due;
  for (int buffer = 0; buffer < 10; ++buffer) due = pace.next(kBytes, kNow, kNow);
  CHECK((due > kNow));
  CHECK((pace.next(kBytes, kNow, kNow - Millis{1001}) == kNow));
  CHECK((pace.next(kBytes, kNow, Time{}) == kNow));
}

TEST_CASE("a save that was held up makes up for little of it") {
  SavePace pace;
  pace.next(kBytes, kNow, kNow);
  const Time later = kNow + Millis{5000};
  int at_once = 0;
  while (pace.next(kBytes, later, later) <= later) ++at_once;
  CHECK(at_once >= 1);
  CHECK(at_once < 40);  // A hundred milliseconds of the five seconds.
}

}  // namespace

}  // namespace gradring::testing::save_pace_test
