// World: one rank's place in a job. Knows who is where, owns the monitor, and makes connections for
// the communicators. Shared by a communicator and everything split from it; leaves the job when the
// last of them closes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "transport/joining/knock.h"
#include "transport/links/link.h"
#include "transport/links/shared_memory.h"
#include "transport/membership/inspection.h"
#include "transport/membership/monitor.h"
#include "transport/membership/scribe.h"

namespace gradring::transport {

class World {
 public:
  static std::shared_ptr<World> join(const JoinOptions& options);
  ~World();

  Rank rank() const { return options_.rank; }
  Rank world_size() const { return options_.world_size; }
  Millis timeout() const { return options_.timeout; }
  Millis heartbeat_timeout() const { return options_.heartbeat_timeout; }
  const wire::Member& member(Rank rank) const { return members_[static_cast<std::size_t>(rank)]; }
  bool shares_memory(Rank a, Rank b) const;  // On one host, and allowed to use it.
  bool shares_host(Rank a, Rank b) const;
  bool spans_hosts(const Group& group) const;                 // Its members are of several hosts.
  std::size_t streams_to(Rank peer) const;                    // Connections that a link is made of.
  std::uint32_t streams() const { return options_.streams; }  // The same, between hosts.
  std::string describe(Rank rank) const;                      // "rank 2 (10.0.0.3:41822)"
  const wire::SessionId& session() const { return session_; }
  const RecordOptions& record_options() const { return options_.record; }
  const CostProfile& costs() const { return options_.costs; }  // The same on every rank.
  // Where newcomers come to, if `leader` leads; "" in a world of one that has no door.
  std::string meeting_point(Rank leader) const;
  const std::shared_ptr<Lobby>& lobby() const { return lobby_; }  // None in such a world.
  // A listener on the host, or all addresses, on which this rank's door is. Any port.
  Fd listen_beside() const;
  // How to meet again, as a part of a larger world; the rest is for the caller to say.
  JoinOptions options_to_grow(Rank leader, int port) const;
  Scribe& scribe() { return *scribe_; }
  // How far rank 0's clock is ahead of ours; nothing if it does not answer. Blocks for round trips.
  std::optional<ClockOffset> compare_clocks() const;
  // What to tell those who ask for this rank's record. Called on the scribe's thread.
  void set_report(std::function<std::string()> report);

  std::shared_ptr<Group> make_group(std::uint64_t id, std::vector<Rank> members,
                                    std::string made_by = {});
  void drop_group(std::uint64_t id);
  void report(const wire::Abort& abort);
  void request_shrink(const wire::ShrinkRequest& request);

  // Communicators come and go; with the last one this rank says goodbye to the job.
  void enter() { users_.fetch_add(1); }
  void leave();

  // The pair's lower rank connects, the higher one waits for the arrival. Both block until the
  // other side's monitor has answered, the group has failed (its failure is thrown), `peer` has
  // left (PeerLost) or the operation's timeout, or what is plenty for any connection, has passed
  // (TimedOut).
  std::unique_ptr<Link> connect(Group& group, Rank peer, std::uint8_t lane, Millis timeout);
  std::unique_ptr<Link> accept(Group& group, std::vector<Arrival> arrivals, Millis timeout) const;
  // Passes a segment's descriptor to a rank on this host / takes one.
  void give_segment(Group& group, Rank peer, const SharedMemory& memory, Millis timeout);
  SharedMemory take_segment(Group& group, Arrival arrival, std::size_t bytes, Millis timeout) const;

  // Throws Closed in a process forked from the one that joined: its threads and turns belong to the
  // parent.
  void check_process() const;
  bool is_here() const;  // In the process that joined.

 private:
  World(const JoinOptions& options, std::vector<wire::Member> members, wire::SessionId session);
  // Until when a connection is waited for, and what is said of it then.
  struct Limit {
    Limit(Millis most, Millis timeout);
    void renew();  // Counts from now.

    Millis span;
    Time deadline;
    std::string text;
  };
  void await(Group& group, Rank peer, std::vector<pollfd> entries, const Limit& limit) const;
  // As many connections, a few of them made at once; each that comes renews the limit.
  std::vector<Connection> open(Group& group, const Intro& intro, std::size_t count,
                               Limit limit) const;
  bool is_through(Group& group, Knock& knock) const;
  Fd receive_memory(Group& group, const Arrival& arrival, Millis timeout) const;
  void answer(Connection guest);
  template <typename Talk>
  auto or_lost(Rank peer, const Talk& talk) const;

  JoinOptions options_;
  std::vector<wire::Member> members_;
  int processors_;  // That all ranks of this host may use.
  wire::SessionId session_;
  std::uint64_t fork_generation_;
  std::atomic<int> users_{0};  // Only counted.
  // When guests are sent away: Time::max() until this rank leaves. A hint: relaxed.
  std::atomic<Clock::rep> guests_go_at_{Time::max().time_since_epoch().count()};
  std::string meeting_point_;  // As in wire::Welcome.
  std::string door_host_;      // Where this rank's door listens.
  std::shared_ptr<Lobby> lobby_;
  Guarded<std::function<std::string()>> report_;
  Guarded<std::set<std::uint64_t>> made_alone_;  // In a world of one: the groups' ids.
  std::unique_ptr<Scribe> scribe_ = std::make_unique<Scribe>();
  std::unique_ptr<Monitor> monitor_;  // None in a world of one.
};

}  // namespace gradring::transport
