// Monitor: one rank's transport::Membership, driven as transport::Monitor drives it: real frames
// over simulated control connections, a door, a beat, and the communicators' Groups.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/collectives/network.h"
#include "sim/trace.h"
#include "transport/membership/group.h"
#include "transport/membership/membership.h"

namespace gradring::sim {

class Monitor {
 public:
  Monitor(Rank rank, Rank world_size, Millis heartbeat_timeout, Network& network, Trace& trace);

  void adopt(Rank peer, std::unique_ptr<transport::Link> control);
  void add(std::shared_ptr<transport::Group> group);

  // One turn. True if it did anything but look. Nothing after it has left.
  bool step();
  Time next_event() const;

  void report(const wire::Abort& abort) { aborts_.push_back(abort); }
  void request_shrink(const wire::ShrinkRequest& request) { shrinks_.push_back(request); }
  void leave() { is_leaving_ = true; }
  bool has_left() const { return has_left_; }

  // A data connection that the door let in.
  std::unique_ptr<transport::Link> take(std::uint64_t communicator, Rank from);

  const transport::Membership& membership() const { return membership_; }
  const std::vector<wire::Lost>& gone() const { return gone_; }  // All so far, in order.
  // Whom it has an open control connection to.
  bool is_connected(Rank peer) const { return controls_.contains(peer); }

 private:
  struct Control {
    std::unique_ptr<transport::Link> link;
    std::vector<std::byte> in;
    std::vector<std::byte> out;
  };
  using Actions = transport::Membership::Actions;

  bool answer_door(Actions& actions);
  bool finish_connecting(Actions& actions);
  bool work_probes(Actions& actions);
  void probe(Rank peer);
  bool read_controls(Actions& actions);
  bool read_control(Rank peer, Control& control, std::string& why, Actions& actions);
  bool flush_controls();
  bool flush_control(Control& control);
  void part_from(Rank peer);
  bool tick(Actions& actions);
  void carry_out(Actions& actions);
  void tell_groups(const Actions& actions);
  bool say_goodbye();

  Rank rank_;
  Network& network_;
  Trace& trace_;
  transport::Membership membership_;
  std::map<Rank, Control> controls_;
  std::map<std::uint64_t, std::shared_ptr<transport::Group>> groups_;
  std::map<std::pair<std::uint64_t, Rank>, std::unique_ptr<transport::Link>> arrivals_;
  std::vector<wire::Lost> gone_;
  std::vector<wire::Abort> aborts_;
  std::vector<wire::ShrinkRequest> shrinks_;
  Time next_beat_{};
  Attempt* attempt_ = nullptr;
  std::vector<Attempt*> probes_;
  bool is_leaving_ = false;
  Time leaves_at_{};  // Once the goodbye is on its way.
  bool has_left_ = false;
};

}  // namespace gradring::sim
