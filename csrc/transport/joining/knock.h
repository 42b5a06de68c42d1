// Knock: a connection to another rank's door while it is being made: connects and shakes hands step
// by step and never waits, so that its owner can look after other things meanwhile. Used by the
// monitor for control connections, by World for data connections.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "transport/joining/handshake.h"
#include "transport/links/connection.h"
#include "wire/messages.h"

namespace gradring::transport {

class Knock {
 public:
  enum class Outcome : std::uint8_t {
    kWaiting,
    kThrough,
    kRefused,  // Nobody of this job listens there: that process has ended.
    kHere,     // This process has no descriptor or memory left for one; why() says which.
    kBroken,   // Anything else; why() says what. Another try may do better.
  };

  // To the door of `member`: its Unix socket where the intro is for this host, its TCP port else.
  // `credentials` outlive this.
  Knock(const wire::Member& member, const Credentials& credentials, const Intro& intro);
  Knock(const wire::Member& member, Credentials&& credentials, const Intro& intro) = delete;

  Rank to() const { return to_; }
  // Does what can be done without waiting. Once it is not kWaiting, it is over.
  Outcome advance();
  pollfd wants() const;
  Connection take() { return std::move(connection_); }  // After kThrough.
  const std::string& why() const { return why_; }

 private:
  Outcome fail(Outcome outcome, const std::string& why);
  Outcome talk();

  Rank to_;
  const Credentials* credentials_;
  Connection connection_;
  ClientHandshake handshake_;
  bool is_connected_ = false;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
  Outcome outcome_ = Outcome::kWaiting;
  std::string why_;
};

}  // namespace gradring::transport
