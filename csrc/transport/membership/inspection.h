// Asking a rank from outside: for its record, and what time it is. A connection with a handshake of
// purpose kInspect, then requests of eight bytes and answers (docs/wire.md). The rank's Scribe
// answers, so it works while the rank's own threads are stuck. Both ends block until a deadline.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "base/clock.h"
#include "transport/joining/credentials.h"

namespace gradring::transport {

// One question for the time: ours before, theirs, ours after. Nanoseconds of steady clocks.
struct ClockSample {
  std::int64_t asked = 0;
  std::int64_t theirs = 0;
  std::int64_t answered = 0;
};

// Their clock is ours plus `offset`, give or take `error`.
struct ClockOffset {
  std::int64_t offset = 0;
  std::int64_t error = 0;
};

// From the quickest answer: it leaves the least room for the two ways to differ (Mills, RFC 5905).
// There must be one.
ClockOffset estimate_offset(std::span<const ClockSample> samples);

class Inspection {
 public:
  // `address`: "host:port", or "unix:name" of an abstract socket. Throws PeerLost if nobody listens
  // there, AuthError, TimedOut, ProtocolError.
  Inspection(const std::string& address, const Credentials& credentials, Time deadline);

  std::string record();
  ClockOffset clock(int questions);

 private:
  Connection connection_;
  Time deadline_;
};

// The other end. Never throws; returns when the guest has gone, is slow, or `until` has passed:
// that is asked again and again, as a rank that leaves has less time.
void answer_inspection(Connection& guest, const std::function<std::string()>& record,
                       const std::function<Time()>& until) noexcept;

}  // namespace gradring::transport
