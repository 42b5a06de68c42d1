// The error kinds: a Failure is an exception that can cross a thread or the wire and come back as
// the same class.
#include "base/error.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

namespace gradring::testing::error_test {

namespace {

// Throws `thrown`, turns it into a value and raises it again as `Expected` with the same text.
template <typename Expected>
void check_round_trip(const Expected& thrown, ErrorKind kind) {
  const Failure failure = Failure::from(thrown);
  CHECK(failure.kind == kind);
  CHECK(static_cast<bool>(failure));
  try {
    failure.raise();
  } catch (const Expected& raised) {
    CHECK(std::string(raised.what()) == thrown.what());
    CHECK(raised.kind() == kind);
  }
}

}  // namespace

TEST_CASE("every error comes back as its own class after crossing a thread as a value") {
  check_round_trip(InvalidArgument("a"), ErrorKind::kInvalidArgument);
  check_round_trip(Mismatch("b"), ErrorKind::kMismatch);
  check_round_trip(TimedOut("c"), ErrorKind::kTimedOut);
  check_round_trip(AuthError("d"), ErrorKind::kAuthError);
  check_round_trip(ProtocolError("e"), ErrorKind::kProtocolError);
  check_round_trip(Closed("f"), ErrorKind::kClosed);
  check_round_trip(InternalError("g"), ErrorKind::kInternalError);
  check_round_trip(Interrupted("h"), ErrorKind::kInterrupted);
}

TEST_CASE("PeerLost keeps the lost rank") {
  const Failure failure = Failure::from(PeerLost(3, "rank 3 died"));
  CHECK(failure.rank == 3);
  try {
    failure.raise();
  } catch (const PeerLost& lost) {
    CHECK(lost.rank == 3);
    CHECK(std::string(lost.what()) == "rank 3 died");
  }
}

TEST_CASE("an exception that is not ours is our bug") {
  const Failure failure = Failure::from(std::length_error("vector too long"));
  CHECK(failure.kind == ErrorKind::kInternalError);
  CHECK(failure.text == "vector too long");
}

TEST_CASE("a fresh Failure is no failure") {
  CHECK_FALSE(static_cast<bool>(Failure{}));
}

TEST_CASE("a failed assertion says what, where and whose fault") {
  const auto fail = [] { GRADRING_ASSERT(1 + 1 == 3); };
  CHECK_THROWS_AS(fail(), InternalError);
  try {
    fail();
  } catch (const InternalError& error) {
    const std::string text = error.what();
    CHECK(text.find("1 + 1 == 3") != std::string::npos);
    CHECK(text.find("error_test.cc:") != std::string::npos);
    CHECK(text.find("report it") != std::string::npos);
  }
}

}  // namespace gradring::testing::error_test
