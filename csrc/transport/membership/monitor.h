// The monitor: one thread a rank. It answers the door, keeps the heartbeat, and carries what
// Membership decides to the communicators' Groups. It moves no payload, so a long collective never
// delays a heartbeat, nor Python's lock a failure.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/guarded.h"
#include "transport/joining/knock.h"
#include "transport/joining/rendezvous.h"
#include "transport/membership/group.h"
#include "transport/membership/membership.h"
#include "transport/membership/probes.h"

namespace gradring::transport {

class Monitor {
 public:
  // `inspect` takes the connections of those who ask for the record; it must not block.
  // `lobby` is for newcomers, of this world or of the one that it has grown out of.
  Monitor(Meeting meeting, const JoinOptions& options, std::shared_ptr<Lobby> lobby,
          std::function<void(Connection)> inspect);
  ~Monitor() { stop(); }

  void stop();  // Says goodbye and ends the thread. Once; what is asked of it later is not done.

  // Callable from any thread.
  void add(std::shared_ptr<Group> group);
  void remove(std::uint64_t group_id);
  void report(const wire::Abort& abort);
  void request_shrink(const wire::ShrinkRequest& request);

 private:
  struct Control {
    Connection connection;
    std::vector<std::byte> in;
    std::vector<std::byte> out;
  };
  struct Orders {
    std::vector<wire::Abort> aborts;
    std::vector<wire::ShrinkRequest> shrinks;
    std::vector<wire::Left> lefts;
    bool is_leaving = false;
  };
  struct Groups {
    std::map<std::uint64_t, std::shared_ptr<Group>> by_id;
    std::vector<Arrival> unclaimed;  // For communicators that this rank has not made yet.
    // Whoever connects for one of these is turned away, and none is made again. Never forgotten:
    // some 50 bytes each while the job lasts.
    std::set<std::uint64_t> closed;
    std::vector<wire::Lost> gone;
    std::vector<wire::Left> lefts;   // Of communicators that this rank has not made yet.
    std::deque<wire::Abort> aborts;  // The same, and of those it is no member of.
  };

  void run();
  void step(Membership::Actions& actions);
  void wait();
  void carry_out(Membership::Actions& actions);
  void tell_groups(const Membership::Actions& actions);
  std::vector<wire::Abort> failed_by(Rank lost) const;  // What is over here for that.
  Failure told_by(const wire::Abort& abort) const;
  void hand_over(Arrival arrival);
  void deliver(Group& group, Arrival arrival);
  void take_arrival(Arrival arrival, Membership::Actions& actions);
  void send_away(Connection newcomer) const;
  void take_newcomer(Arrival newcomer);
  void leave_lobby();
  void connect(Rank peer);
  void advance_knock(Membership::Actions& actions);
  void work_probes(Membership::Actions& actions);
  void read_controls(Membership::Actions& actions);
  bool read_control(Rank peer, Control& control, std::string& why, Membership::Actions& actions);
  void flush_controls(Membership::Actions& actions);
  void say_goodbye();
  std::vector<wire::CallState> calls() const;
  void wake();

  // Monitor thread only, after the constructor.
  Meeting meeting_;
  Rank rank_;
  Credentials credentials_;
  std::function<void(Connection)> inspect_;
  std::shared_ptr<Lobby> lobby_;
  bool is_first_there_;  // The lobby's listener is this one's door.
  Membership membership_;
  std::map<Rank, Control> controls_;
  std::optional<Knock> knock_;  // At the coordinator's door.
  Probes probes_;               // Of those that have not come to this rank, which leads.
  Time next_beat_{};

  Guarded<Orders> orders_;
  Guarded<Groups> groups_;
  Fd wake_;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace gradring::transport
