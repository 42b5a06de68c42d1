// Newcomer: a process that comes to a job which runs already. It waits in the lobby of whoever
// leads the job until its ranks grow, and hears then which rank it is and where all meet. Blocks
// the thread that calls it, until its deadline.
#pragma once

#include <string>

#include "transport/joining/rendezvous.h"

namespace gradring::transport {

class Newcomer {
 public:
  // `options.rendezvous` is where the job is found, `options.timeout` how long it waits to be
  // invited. Its rank, transport and timeouts are for the job to say.
  explicit Newcomer(JoinOptions options);

  // How to join, once it is invited. Throws TimedOut that says what it waited for, AuthError,
  // wire::OtherBuild; InvalidArgument: this is no door of who leads the job, or the job's transport
  // does not lead here.
  JoinOptions await_invitation();
  // Whether all have met, after a try to join. If not it is to wait for the next invitation. Throws
  // TimedOut: it did not come to the meeting, and the others have given it up. Where whoever leads
  // the job is gone meanwhile nobody says no, and the world of those who have met says what became
  // of it.
  bool is_taken(bool has_met);

 private:
  // Throws ProtocolError where the connection ends, and TimedOut.
  wire::Message hear(Time deadline);
  JoinOptions accept(const wire::Invitation& invitation);

  JoinOptions options_;
  Time deadline_;
  Millis patience_{0};  // Of the meeting that it was invited to last.
  Connection connection_;
};

}  // namespace gradring::transport
