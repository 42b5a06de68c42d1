// Who is still there: the protocol behind promises P2 and P3. Every rank keeps one control
// connection to the coordinator, the lowest living rank, and both beat. The coordinator tells
// everybody who died, froze or left, passes on aborts, and compares what the ranks say they are
// calling. When the coordinator itself goes, the next lowest rank takes over. Sans-I/O: told events
// and the time, it says what to send. The monitor drives it with sockets, the simulator with a
// seed.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "wire/messages.h"

namespace gradring::transport {

// Two ranks have a group of one id with different members. What each called, as in made_by;
// `theirs` is "" where that is not known.
Failure members_differ(Rank rank, const std::string& mine, Rank other, const std::string& theirs);

class Membership {
 public:
  struct Settings {
    Rank rank = 0;
    Rank world_size = 1;
    Millis heartbeat_timeout{5000};
    std::vector<std::string> addresses;  // By rank, for texts.
  };

  // What it wants done, in order. The driver carries it out and empties it.
  struct Actions {
    std::vector<std::pair<Rank, wire::Message>> send;
    std::vector<Rank> disconnect;
    std::optional<Rank> connect;  // Open a control connection to this rank, then say on_connected
                                  // or on_refused. Asked for again in each tick until then.
    std::vector<Rank> probe;      // Ask whether anybody listens there, and say on_refused if nobody
                                  // does. Asked for again in each tick until it has come.
    std::vector<wire::Lost>
        gone;  // For the user: these ranks died or left. May name this rank itself.
    std::vector<Rank> contested;  // These left for others, but were lost for this rank: to abort
                                  // what it has failed for that.
    std::vector<wire::Abort> aborted;       // For the user: these communicators are over.
    std::vector<wire::ShrinkReply> shrunk;  // For the user: these groups agreed on their survivors.
    std::vector<wire::ShrinkWait> awaited;  // For the user: whom its shrinks wait for.
    std::vector<wire::Left> left;           // For the user: these ranks closed a communicator.
    std::vector<std::string> warnings;      // For the user, to read: what takes long, and for whom.
  };

  Membership(Settings settings, Time now);

  void on_connected(Rank peer, Time now, Actions& actions);
  void on_closed(Rank peer, Time now, const std::string& why, Actions& actions);
  // Nobody listens where `peer` did: its process has ended, in good order or not. Its data
  // connections end too, and tell those who still need it.
  void on_refused(Rank peer, Time now, Actions& actions);
  void on_message(Rank peer, const wire::Message& message, Time now, Actions& actions);
  // Call at least every beat_interval().
  void on_tick(Time now, const std::vector<wire::CallState>& calls, Actions& actions);

  void abort(const wire::Abort& abort,
             Actions& actions);  // A local communicator failed: tell the others.
  void leave(Actions& actions);  // Say goodbye.
  void leave_group(const wire::Left& left, Actions& actions);  // It closed one communicator.
  void shrink(const wire::ShrinkRequest& request, Actions& actions);

  Rank coordinator() const;
  bool is_coordinator() const { return coordinator() == settings_.rank; }
  bool is_alive(Rank rank) const { return peers_[static_cast<std::size_t>(rank)].is_alive; }
  Millis beat_interval() const;

 private:
  struct Peer {
    bool is_alive = true;
    bool is_connected = false;
    bool has_spoken = true;  // Has beaten since the last change of coordinators.
    Time last_heard{};
    wire::Lost farewell;                 // Why it is not alive.
    bool was_silent = false;             // That is why.
    std::optional<wire::Lost> goodbye;   // It was lost for this rank, but left for another one.
    std::optional<Time> told_at;         // Its loss, if this rank did not find it itself.
    std::vector<wire::CallState> calls;  // Coordinator: its last heartbeat.
  };
  struct Shrink {
    std::vector<Rank> members;
    std::vector<Rank> asked;  // Who has asked for it so far.
  };

  struct Stall {
    Time since;
    Time told_at;  // When it is told of next.
  };

  Peer& peer(Rank rank) { return peers_[static_cast<std::size_t>(rank)]; }
  void hear_lost(const wire::Lost& lost, Rank from, Time now, Actions& actions);
  void hear_doubt(Rank doubter, const std::string& text, Time now, Actions& actions);
  void settle_doubts(Time now, Actions& actions);
  void step_down(const std::string& why, Actions& actions);
  void believe_goodbyes(Time now, Actions& actions);
  void contest(const wire::Lost& lost, Time now, Actions& actions);
  bool was_away(Time now) const;
  bool is_followed_by_most() const;
  const wire::Lost* why_most_left(Rank leader) const;
  void forgive_own_pause(Time now);
  void note_sign_of_life(Rank from, bool is_beat, Time now);
  void watch_followers(Time now, Actions& actions);
  void look_for_followers(Time now, Actions& actions) const;
  bool is_silent(Rank rank, Time now) const;
  Millis time_to_agree() const;
  void give_up(Rank rank, Time now, Actions& actions);
  void lose(wire::Lost lost, Time now, Actions& actions);
  void take_over(Actions& actions);
  wire::Heartbeat beat(const std::vector<wire::CallState>& calls);
  void check_calls(Actions& actions);
  struct Calling {
    Rank rank;
    const Call* call;
  };
  void note_stalls(Time now, Actions& actions);
  std::string describe_stall(const wire::CallState& waiting, Time::duration time) const;
  void report_difference(const wire::CallState& state, std::uint64_t seq, Calling one,
                         Calling other, Actions& actions);
  void check_members(Actions& actions);
  void spread(const wire::Message& message, Rank except, Actions& actions);
  void handle_abort(wire::Abort abort, Rank from, Actions& actions);
  void request_shrink(const wire::ShrinkRequest& request, Rank from, Actions& actions);
  void settle_shrinks(Actions& actions);
  bool is_still_in(std::uint64_t communicator, Rank rank) const;
  std::vector<Rank> who_has_not_asked(std::uint64_t communicator, const Shrink& shrink) const;
  wire::ShrinkWait who_is_awaited(std::uint64_t communicator, const Shrink& shrink) const;
  void tell_of_shrink(const wire::ShrinkWait& wait, Rank to, Actions& actions);
  void tell_of_shrinks(Actions& actions);
  void settle(const wire::ShrinkReply& reply, Actions& actions);
  void hear_left(const wire::Left& left, Rank from, Actions& actions);
  void tell_members(const wire::Left& left, Rank except, Actions& actions);
  std::string who_is_not_in(const wire::Abort& abort) const;
  std::string describe_rank(Rank rank) const;
  std::string whom_it_lost(Rank from) const;  // ", having lost rank 0 (...)", or nothing.

  Settings settings_;
  std::vector<Peer> peers_;  // By rank; own entry alive and connected.
  // Losses told by ranks that do not lead, as far as this rank knows: heard again when that
  // changes.
  std::vector<std::pair<Rank, wire::Lost>> hearsay_;
  std::map<std::uint64_t, wire::Abort> aborts_;  // By communicator; repeated to a new coordinator.
  std::map<std::uint64_t, Shrink> shrinks_;      // Coordinator only, by communicator.
  // Coordinator only, by communicator and sequence: operations that some wait in and others have
  // not begun.
  std::map<std::pair<std::uint64_t, std::uint64_t>, Stall> stalls_;
  // By communicator; repeated to a new coordinator, which may not have heard the old one's answer.
  std::map<std::uint64_t, wire::ShrinkReply> settled_;
  std::deque<wire::Left> lefts_;  // The last ones; repeated as well.
  Time last_tick_;
  Time term_began_{};  // When the coordinator before was lost.
  // When this rank last found that it had not run, or that it leads and hears less than half.
  std::optional<Time> away_at_;
  std::map<Rank, std::string> doubts_;      // Who has given this rank up, and why.
  std::optional<Time> last_doubt_at_;       // When it gave somebody up for that.
  std::optional<wire::Lost> stepped_down_;  // Told to all who come to it as to the coordinator.
  std::size_t next_idle_ = 0;  // Of the communicators in no call: the first to tell of next.
  bool is_leaving_ = false;
  std::vector<wire::ShrinkRequest> own_shrinks_;  // Repeated to a new coordinator.
};

}  // namespace gradring::transport
