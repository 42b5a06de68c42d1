// The listening side of a process: one TCP port and one abstract Unix socket. Accepts, shakes hands
// without blocking, encrypted where the guest or its host asks for that, and hands out connections
// that have proved themselves. Strangers are refused, logged once, and disturb nobody. Owned by one
// thread at a time: init's while ranks meet, the monitor's afterwards.
#pragma once

#include <poll.h>

#include <list>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/joining/handshake.h"
#include "transport/links/connection.h"

namespace gradring::transport {

struct Arrival {
  Connection connection;
  Intro intro;
};

class Door {
 public:
  Door(Fd tcp, Fd unix_socket, Credentials credentials, Rank rank);

  void add_polls(std::vector<pollfd>& polls) const;
  // Does what can be done without waiting, and returns the connections that are through.
  std::vector<Arrival> work(Time now);
  int tcp_fd() const { return tcp_.get(); }
  // Takes in also who comes to `listener`.
  void open_also(Fd listener) { second_ = std::move(listener); }
  bool is_open_twice() const { return static_cast<bool>(second_); }
  // For another door, when this one closes: what it was given so, or its own.
  Fd take_listener() { return second_ ? std::move(second_) : std::move(tcp_); }
  // Who came with another version of the wire, the last of them, and what that is; or nothing.
  const std::string& other_build() const { return other_build_; }

 private:
  struct Guest {
    Connection connection;
    ServerHandshake handshake;
    Time deadline;
    std::vector<std::byte> in;
    std::vector<std::byte> out;
    bool has_begun = false;  // To speak, encrypted or not.
  };
  enum class Outcome : std::uint8_t { kWaiting, kThrough, kGone };
  void accept_all(int listener, Time now);
  void rest(Time now, int error);
  Outcome advance(Guest& guest, Time now);
  bool begin(Guest& guest) const;
  void talk(Guest& guest) const;

  Fd tcp_;
  Fd second_;
  Fd unix_;
  Credentials credentials_;  // Before guests_, whose handshakes point to it.
  Rank rank_;
  std::string other_build_;
  std::list<Guest> guests_;
  Time rests_until_{};  // Takes nobody: this process is out of descriptors.
  bool is_resting_ = false;
};

}  // namespace gradring::transport
