#include "transport/joining/door.h"

#include <cerrno>

#include "base/config.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/links/pacing.h"
#include "transport/links/resolve.h"
#include "transport/links/socket.h"

namespace gradring::transport {
namespace {

constexpr const char* kClosedEarly =
    "it closed the connection during the handshake: it ended or was interrupted, or it waited too "
    "long for an answer, as beside a busy or restarted process, and tries again";
// What a coordinator's probe does too (membership/probes.h).
constexpr const char* kSilent =
    "it closed the connection without a word, as who looks whether anybody listens here: a health "
    "check, a port scan, or a rank that leads now and had not heard of this one yet";
constexpr const char* kPlain =
    "it is not encrypted, and is to be: GRADRING_TLS is off there, or auto where it is on here or "
    "where a tunnel or a published port leads here; set it to the same on all hosts, and before a "
    "tunnel to on";
constexpr Millis kGrace{100};  // Before a guest may have to make room.
constexpr Millis kRest{100};   // Without descriptors, before the next try to take somebody.

// What comes with it are descriptors, which only a Unix socket carries.
bool brings_memory(Purpose purpose) {
  return purpose == Purpose::kSharedLink || purpose == Purpose::kSegment ||
         purpose == Purpose::kSharedParameters;
}

// One line for each host and kind of reason: a stranger chooses its ports, and what it says it is.
void refuse(Rank rank, int fd, const std::string& kind, const std::string& why) {
  const std::string from = peer_text(fd);
  const std::string host = from.substr(0, from.rfind(':'));
  log_warning_once(rank, host + kind, str("refused a connection from ", from, ": ", why));
}

void refuse(Rank rank, int fd, const std::string& why) {
  refuse(rank, fd, why, why);
}

}  // namespace

Door::Door(Fd tcp, Fd unix_socket, Credentials credentials, Rank rank)
    : tcp_(std::move(tcp)),
      unix_(std::move(unix_socket)),
      credentials_(std::move(credentials)),
      rank_(rank) {}

void Door::add_polls(std::vector<pollfd>& polls) const {
  // Who cannot be taken would wake its poller for nothing, again and again.
  if (!is_resting_) polls.push_back({tcp_.get(), POLLIN, 0});
  if (!is_resting_ && second_) polls.push_back({second_.get(), POLLIN, 0});
  if (!is_resting_ && unix_) polls.push_back({unix_.get(), POLLIN, 0});
  for (const Guest& guest : guests_) {
    const short events = guest.connection.events(true, !guest.out.empty());
    polls.push_back({guest.connection.get(), events, 0});
  }
}

std::vector<Arrival> Door::work(Time now) {
  is_resting_ = now < rests_until_;
  if (!is_resting_) accept_all(tcp_.get(), now);
  if (!is_resting_ && second_) accept_all(second_.get(), now);
  if (!is_resting_ && unix_) accept_all(unix_.get(), now);
  std::vector<Arrival> arrivals;
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const Outcome outcome = advance(*guest, now);
    if (outcome == Outcome::kThrough)
      arrivals.push_back({std::move(guest->connection), guest->handshake.intro()});
    guest = outcome == Outcome::kWaiting ? std::next(guest) : guests_.erase(guest);
  }
  return arrivals;
}

void Door::accept_all(int listener, Time now) {
  while (true) {
    // A crowd of strangers must not shut out a rank, which needs two round trips and then is no
    // guest. Nor must a crowd of ranks that all start at once: those behind wait in the listener.
    const bool is_full = guests_.size() >= limits::kHandshakesPending;
    if (is_full && now < guests_.front().deadline - limits::kHandshakeTime + kGrace) return;
    int error = 0;
    Fd fd = accept_one(listener, &error);
    if (!fd && (error == EMFILE || error == ENFILE)) rest(now, error);
    if (!fd) return;
    if (is_full) {
      refuse(rank_, guests_.front().connection.get(),
             "too many connections that have not proved themselves");
      guests_.pop_front();
    }
    guests_.push_back({std::move(fd),
                       ServerHandshake(credentials_.secret, random_nonce()),
                       now + limits::kHandshakeTime,
                       {},
                       {},
                       false});
  }
}

void Door::rest(Time now, int error) {
  is_resting_ = true;
  rests_until_ = now + kRest;
  log_warning_once(rank_, "door rests",
                   str("takes no connections for now: ", errno_text(error), limit_hint(error)));
}

// Its first byte says whether it is encrypted; a guest that should be is heard, and refused. False
// while it has said nothing.
bool Door::begin(Guest& guest) const {
  const auto first = peek(guest.connection.get());
  if (!first && has_hung_up(guest.connection.get()) && !peek(guest.connection.get()))
    throw ProtocolError(kSilent);
  if (!first) return false;
  if (Tls::begins_with(*first) && !is_unix(guest.connection.get()))
    guest.connection.encrypt(credentials_.secret, Tls::End::kServer);
  else if (credentials_.want_encrypted(guest.connection.get()))
    guest.handshake.want_encryption();
  return true;
}

// Until it is through, waits for more, or is refused. Throws what makes it be dropped.
void Door::talk(Guest& guest) const {
  while (true) {
    while (!guest.out.empty()) {
      const Io io = guest.connection.send_some(guest.out);
      if (io.closed) throw ProtocolError(kClosedEarly);
      if (io.bytes == 0) break;
      guest.out.erase(guest.out.begin(), guest.out.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    }
    if (guest.handshake.wants() == 0) return;

    // Never more than the message it may send now: what follows the handshake belongs to the
    // connection's owner.
    const std::size_t have = guest.in.size();
    guest.in.resize(guest.handshake.wants());
    const Io io = guest.connection.recv_some(std::span(guest.in).subspan(have));
    guest.in.resize(have + io.bytes);
    if (io.closed) throw ProtocolError(kClosedEarly);
    if (guest.in.size() == guest.handshake.wants()) {
      guest.out = guest.handshake.receive(guest.in);
      guest.in.clear();
    } else if (io.bytes == 0) {
      return;
    }
  }
}

Door::Outcome Door::advance(Guest& guest, Time now) {
  const int fd = guest.connection.get();
  try {
    guest.has_begun = guest.has_begun || begin(guest);
    if (guest.has_begun) talk(guest);
    if (guest.handshake.wants() == 0 && guest.out.empty()) {
      if (guest.handshake.is_done()) {
        if (!brings_memory(guest.handshake.intro().purpose) || is_unix(fd))
          return Outcome::kThrough;
        throw ProtocolError("it brings shared memory, and not through this host's Unix socket");
      }
      if (guest.handshake.lacks_encryption()) throw AuthError(kPlain);
      throw wire::OtherBuild(*guest.handshake.other_build());
    }
  } catch (const wire::OtherBuild& error) {
    other_build_ = str(peer_text(fd), ": ", error.what());
    refuse(rank_, fd, "another version", error.what());
    return Outcome::kGone;
  } catch (const Error& error) {
    refuse(rank_, fd, error.what());
    return Outcome::kGone;
  }
  if (now < guest.deadline) return Outcome::kWaiting;
  refuse(rank_, fd, "it did not finish the handshake in time");
  return Outcome::kGone;
}

}  // namespace gradring::transport
