#include "transport/joining/knock.h"

#include <cerrno>

#include "base/error.h"
#include "transport/links/resolve.h"
#include "transport/links/socket.h"

namespace gradring::transport {
namespace {

constexpr Millis kLocalTime{2000};  // For a member of this host whose queue is full.

Knock::Outcome outcome_of(int error) {
  if (error == ECONNREFUSED) return Knock::Outcome::kRefused;
  return is_shortage(error) ? Knock::Outcome::kHere : Knock::Outcome::kBroken;
}

// Told to other ranks too.
std::string hint_of(int error) {
  return limit_hint(error, "its");
}

}  // namespace

Knock::Knock(const wire::Member& member, const Credentials& credentials, const Intro& intro)
    : to_(intro.to),
      credentials_(&credentials),
      handshake_(credentials.secret, random_nonce(), intro),
      out_(handshake_.hello()) {
  if (intro.purpose == Purpose::kSharedLink || intro.purpose == Purpose::kSegment) {
    std::string why;
    int error = 0;
    connection_ = connect_unix(member.unix_name, Clock::now() + kLocalTime, why, &error);
    is_connected_ = static_cast<bool>(connection_);
    if (!connection_)
      fail(is_shortage(error) ? Outcome::kHere : Outcome::kBroken, why + hint_of(error));
    return;
  }
  int error = 0;
  connection_ = begin_connect_tcp(parse_host_port(member.tcp_address), error);
  if (!connection_) fail(outcome_of(error), errno_text(error) + hint_of(error));
}

Knock::Outcome Knock::fail(Outcome outcome, const std::string& why) {
  connection_.reset();
  why_ = why;
  return outcome_ = outcome;
}

pollfd Knock::wants() const {
  const bool writes = !is_connected_ || !out_.empty();
  return {connection_.get(), connection_.events(!writes, writes), 0};
}

Knock::Outcome Knock::advance() {
  if (outcome_ != Outcome::kWaiting) return outcome_;
  if (!is_connected_) {
    pollfd entry = wants();
    if (::poll(&entry, 1, 0) <= 0) return outcome_;
    const int error = connect_error(connection_.get());
    if (error != 0) return fail(outcome_of(error), errno_text(error));
    is_connected_ = true;
    credentials_->open(connection_);
  }
  try {
    return talk();
  } catch (const AuthError& error) {
    say_no_proof(connection_);
    // Its port has another owner now.
    return fail(Outcome::kRefused, error.what());
  } catch (const wire::OtherBuild& error) {
    return fail(Outcome::kRefused, error.what());
  } catch (const ProtocolError& error) {
    return fail(Outcome::kBroken, error.what());
  }
}

Knock::Outcome Knock::talk() {
  while (true) {
    if (!out_.empty()) {
      const Io io = connection_.send_some(out_);
      if (io.closed) return fail(Outcome::kBroken, "it closed the connection");
      if (io.bytes == 0) return outcome_;
      out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(io.bytes));
      continue;
    }
    if (handshake_.is_done()) return outcome_ = Outcome::kThrough;
    // Never more than this message: what follows belongs to the connection's owner.
    const std::size_t have = in_.size();
    in_.resize(handshake_.wants());
    const Io io = connection_.recv_some(std::span(in_).subspan(have));
    in_.resize(have + io.bytes);
    if (in_.size() == handshake_.wants()) {
      out_ = handshake_.receive(in_);
      in_.clear();
    } else if (io.closed) {
      return fail(Outcome::kBroken, "it closed the connection");
    } else if (io.bytes == 0) {
      return outcome_;
    }
  }
}

}  // namespace gradring::transport
