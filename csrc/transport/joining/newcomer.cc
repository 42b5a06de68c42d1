#include "transport/joining/newcomer.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "transport/joining/control_frames.h"
#include "transport/joining/host.h"

namespace gradring::transport {
namespace {

constexpr Millis kNextTry{50};
constexpr Millis kSignalsPause{100};  // At the latest a signal is heard after it.

}  // namespace

Newcomer::Newcomer(JoinOptions options)
    : options_(std::move(options)), deadline_(Clock::now() + options_.timeout) {
  options_.rank = -1;
}

JoinOptions Newcomer::await_invitation() {
  std::string why =
      "its ranks have not called grow(), which all of them do together between two "
      "steps";
  while (true) {
    try {
      if (!connection_) connection_ = find_host(options_, deadline_);
      const wire::Message message = hear(deadline_);
      if (const auto* invitation = std::get_if<wire::Invitation>(&message))
        return accept(*invitation);
      // A call to grow() has failed before it came to invitations.
      if (std::holds_alternative<wire::Grown>(message)) continue;
      const auto* refused = std::get_if<wire::Refused>(&message);
      if (refused == nullptr) throw ProtocolError("what came is no invitation");
      if (!refused->may_come_again) throw InvalidArgument(str("join: ", refused->text));
      why = refused->text;
    } catch (const wire::OtherBuild&) {
      throw;
    } catch (const ProtocolError&) {
      // Who leads the job is going, and may be back, or somebody else at its address.
    } catch (const TimedOut&) {
      if (!connection_) throw;
      throw TimedOut(str("join: waited ", seconds_between(Time{}, Time{options_.timeout}),
                         " s at the door of the job at ", to_text(options_.rendezvous), ": ", why));
    }
    connection_.reset();
    ::poll(nullptr, 0, static_cast<int>(kNextTry.count()));
    // Who answers at once would keep it from the others that look for signals.
    if (options_.check_interrupt) options_.check_interrupt();
  }
}

bool Newcomer::is_taken(bool has_met) {
  std::string why;
  try {
    const wire::Message message = hear(std::max(deadline_, Clock::now() + patience_));
    if (const auto* grown = std::get_if<wire::Grown>(&message)) return grown->is_done;
    if (const auto* refused = std::get_if<wire::Refused>(&message)) why = refused->text;
  } catch (const ProtocolError&) {
    // It has ended.
  } catch (const TimedOut&) {
    // It is frozen.
  }
  if (!why.empty()) throw TimedOut(str("join: ", why));
  connection_.reset();
  return has_met;
}

wire::Message Newcomer::hear(Time deadline) {
  while (!connection_.wait_readable(std::min(deadline, Clock::now() + kSignalsPause))) {
    if (options_.check_interrupt) options_.check_interrupt();
    if (Clock::now() >= deadline) throw TimedOut("nothing was said");
  }
  return recv_frame(connection_, std::max(deadline, Clock::now() + kSignalsPause));
}

JoinOptions Newcomer::accept(const wire::Invitation& invitation) {
  patience_ = Millis{invitation.patience_ms};
  JoinOptions options = options_;
  options.rank = invitation.rank;
  options.world_size = static_cast<Rank>(invitation.world_size);
  options.rendezvous.port = static_cast<int>(invitation.port);
  options.mode = invitation.mode;
  options.timeout = Millis{invitation.timeout_ms};
  options.heartbeat_timeout = Millis{invitation.heartbeat_timeout_ms};
  options.growth = Growth{.patience = patience_, .lobby = nullptr};
  if (options.mode == TransportMode::kShm && host_key() + options.host_label != invitation.host_key)
    throw InvalidArgument(
        str("join: the job at ", to_text(options_.rendezvous),
            " uses transport 'shm', and this process is on another host or in another network "
            "name space; start the job with 'auto'"));
  return options;
}

}  // namespace gradring::transport
