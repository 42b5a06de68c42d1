// TimedNetwork: a network in simulated time, for worlds of thousands of ranks (scale.h): what a
// connection, a port and a rank's processor can do in a microsecond, drawn from a seed. A host per
// rank, one port each; no losses and no faults (sim/collectives/network.h has those). The same
// PlanRun that runs over sockets runs over its links. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <span>
#include <string>
#include <vector>

#include "sim/dice.h"
#include "transport/mesh.h"

namespace gradring::sim {

using Nanos = std::int64_t;

// In LogGP's terms (Alexandrov et al., 1995): L, o, and G of the port and of the processor.
struct NetworkModel {
  double latency_us = 10;          // One way, wake-up of the receiver included.
  double call_us = 1.5;            // The processor, for each send or receive that moves something.
  double look_us = 0.3;            // The same, where nothing could be moved.
  double port_gb_s = 3.1;          // 25 Gbit/s; out and in at once.
  double copy_gb_s = 8;            // Between user memory and socket, on the rank's processor.
  double reduce_gb_s = 10;         // Result bytes of adding two operands.
  std::uint64_t window = 4 << 20;  // Under way in one direction of a connection.
  bool is_cold = false;  // Connections are made when first used: three round trips that the lower
                         // rank of the pair waits for (transport/joining/handshake.h).
  // Stragglers: this share of the ranks has processor and port slower by this factor, and every
  // message's latency is multiplied by exp(jitter * normal).
  double slow_share = 0;
  double slow_factor = 1;
  double jitter = 0;
  std::uint64_t seed = 1;
};

// Only hops count: every message takes one unit, everything else nothing.
NetworkModel hops_only();
inline constexpr Nanos kHop = 1000;

class TimedNetwork {
 public:
  // `carries_data`: payload is copied from sender to receiver. Otherwise only headers and byte
  // counts travel, and the addresses that a run passes are never looked at.
  TimedNetwork(const NetworkModel& model, Rank ranks, bool carries_data);
  ~TimedNetwork();
  TimedNetwork(const TimedNetwork&) = delete;
  TimedNetwork& operator=(const TimedNetwork&) = delete;

  transport::Peers& peers(Rank rank);
  // What the next `bytes` from a peer make a rank compute once they are there.
  struct Chore {
    std::uint64_t bytes = 0;
    std::uint64_t added_bytes = 0;
    std::uint64_t copied_bytes = 0;
  };
  // In the order they come. Must outlive the last byte.
  void expect(Rank rank, Rank peer, std::span<const Chore> chores);
  void compute(Rank rank, const Chore& chore);  // Now, before anything else it does.

  // Lets time pass until all ranks are through: calls `turn(rank)`, true when that rank is, once
  // for each at the start and whenever something reaches it. Returns when the last one was.
  // Throws if they wait for each other for ever.
  template <typename Turn>
  Nanos run(const Turn& turn);

  // Connections that a rank has in the end.
  std::size_t connections(Rank rank) const;
  std::uint64_t messages() const { return messages_; }

 private:
  class Port;
  class Wire;
  struct Pipe;
  struct Event {
    Nanos at = 0;
    std::uint64_t nth = 0;
    std::uint32_t pipe = 0;  // Or kWakeUp.
    Rank rank = -1;
    bool operator>(const Event& other) const {
      return at != other.at ? at > other.at : nth > other.nth;
    }
  };

  void push(Nanos at, std::uint32_t pipe, Rank rank);
  Rank next();  // The rank whose turn it is, or -1 at the end.
  void end_turn(Rank rank, bool is_through);
  std::uint32_t add_pipe(Rank from, Rank to);
  void depart(std::uint32_t pipe, std::uint64_t bytes);
  void arrive(Pipe& pipe, Rank to);
  Nanos latency();
  Nanos copy_time(std::uint64_t bytes) const;
  Nanos time_for(const Chore& chore) const;
  double slowness(Rank rank) const;
  Port& port(Rank rank) { return *ports_[static_cast<std::size_t>(rank)]; }

  const NetworkModel model_;
  const bool carries_data_;
  Dice dice_;
  Nanos now_ = 0;
  Nanos last_ = 0;  // When the last rank so far was through.
  Rank left_ = 0;
  std::uint64_t nth_ = 0;
  std::uint64_t messages_ = 0;
  std::vector<Pipe> pipes_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

template <typename Turn>
Nanos TimedNetwork::run(const Turn& turn) {
  left_ = static_cast<Rank>(ports_.size());
  for (Rank rank = 0; rank < static_cast<Rank>(ports_.size()); ++rank) end_turn(rank, turn(rank));
  for (Rank rank = next(); rank >= 0; rank = next()) end_turn(rank, turn(rank));
  return last_;
}

}  // namespace gradring::sim
