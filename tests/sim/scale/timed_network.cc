#include "sim/scale/timed_network.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"

namespace gradring::sim {
namespace {

constexpr std::uint32_t kWakeUp = std::numeric_limits<std::uint32_t>::max();
constexpr double kUnlimited = std::numeric_limits<double>::infinity();
constexpr double kRoundTripsToConnect = 3;  // TCP's, and the two of the handshake.
// What a kernel hands to a port, and takes from one, at a time.
constexpr std::uint64_t kSegmentBytes = 64 * 1024;

Nanos nanos(double micros) {
  return static_cast<Nanos>(std::llround(micros * 1000));
}

Nanos time_of(std::uint64_t bytes, double gb_s) {
  return static_cast<Nanos>(std::llround(static_cast<double>(bytes) / gb_s));
}

}  // namespace

NetworkModel hops_only() {
  NetworkModel model;
  model.latency_us = 1e-3 * static_cast<double>(kHop);
  model.call_us = model.look_us = 0;
  model.port_gb_s = model.copy_gb_s = model.reduce_gb_s = kUnlimited;
  model.window = std::numeric_limits<std::uint64_t>::max();
  return model;
}

// One direction of a connection: a stream of bytes, cut into segments.
struct TimedNetwork::Pipe {
  struct Parcel {
    Nanos ready = 0;  // Sent: when its last bit can be there. Arrived: when it may be received.
    std::uint64_t bytes = 0;
  };
  Rank from = -1;
  Rank to = -1;
  std::vector<Parcel> parcels;
  std::size_t first = 0;    // Not yet received in full.
  std::size_t arrived = 0;  // Before this one, all have.
  std::uint64_t under_way = 0;
  bool is_full = false;  // The sender waits for room.
  Nanos last_arrival = 0;
  std::vector<std::byte> carried;  // Headers, and payload if that travels.
  std::size_t delivered = 0;       // Of `carried`.
};

// One rank's end of a connection.
class TimedNetwork::Wire final : public transport::Link {
 public:
  Wire(TimedNetwork& network, std::uint32_t out, std::uint32_t in)
      : network_(network), out_(out), in_(in) {}

  transport::Io send_some(std::span<const std::byte> head,
                          std::span<const std::byte> body) override;
  transport::Io recv_some(std::span<std::byte> head, std::span<std::byte> body) override;
  bool prepare_sleep(bool, bool) override { return false; }
  void finish_sleep() override {}
  int fd() const override { return -1; }
  short poll_events(bool, bool) const override { return 0; }
  std::string peer_address() const override { return "simulated"; }

  void expect(std::span<const Chore> chores) {
    chores_ = chores;
    done_of_chore_ = 0;
  }
  Nanos usable_from = 0;  // For the rank that did not connect.

 private:
  transport::Io nothing(Rank rank);
  std::uint64_t take(Pipe& pipe, std::uint64_t most);
  Nanos chores_for(std::uint64_t bytes);

  TimedNetwork& network_;
  const std::uint32_t out_;
  const std::uint32_t in_;
  std::span<const Chore> chores_;  // Still to come.
  std::uint64_t done_of_chore_ = 0;
};

// One rank's processor and network port.
class TimedNetwork::Port final : public transport::Peers {
 public:
  Port(TimedNetwork& network, Rank rank, Rank ranks)
      : network_(network), rank_(rank), wires_(static_cast<std::size_t>(ranks)) {}

  transport::Link* link(Rank peer) override;
  Wire& wire(Rank peer);
  void expect(Rank peer, std::span<const Chore> chores);
  std::size_t connections() const {
    return static_cast<std::size_t>(std::count_if(
        wires_.begin(), wires_.end(), [](const auto& wire) { return wire != nullptr; }));
  }
  void work(Nanos time) { busy_until += static_cast<Nanos>(static_cast<double>(time) * slowness); }

  double slowness = 1;
  Nanos busy_until = 0;
  Nanos out_free = 0;
  Nanos in_free = 0;
  bool will_wake = false;
  bool is_through = false;

 private:
  TimedNetwork& network_;
  const Rank rank_;
  std::unique_ptr<Wire> make_wire(Rank peer, std::uint32_t out, std::uint32_t in);
  std::vector<std::unique_ptr<Wire>> wires_;
  std::unordered_map<Rank, std::span<const Chore>>
      chores_;  // Of connections that are still to come.
};

transport::Link* TimedNetwork::Port::link(Rank peer) {
  auto& slot = wires_[static_cast<std::size_t>(peer)];
  if (slot) [[likely]]
    return slot->usable_from <= network_.now_ || rank_ < peer ? slot.get() : nullptr;
  if (!network_.model_.is_cold) return &wire(peer);
  if (rank_ > peer) return nullptr;  // As Mesh::link: the lower rank connects, and waits for it.
  work(nanos(4 * network_.model_.call_us));
  busy_until += static_cast<Nanos>(2 * kRoundTripsToConnect) * network_.latency();
  wire(peer);
  network_.port(peer).wire(rank_).usable_from = busy_until;
  network_.push(busy_until, kWakeUp, peer);
  return slot.get();
}

TimedNetwork::Wire& TimedNetwork::Port::wire(Rank peer) {
  auto& slot = wires_[static_cast<std::size_t>(peer)];
  if (slot) return *slot;
  const std::uint32_t out = network_.add_pipe(rank_, peer);
  const std::uint32_t in = network_.add_pipe(peer, rank_);
  slot = make_wire(peer, out, in);
  Port& theirs = network_.port(peer);
  theirs.wires_[static_cast<std::size_t>(rank_)] = theirs.make_wire(rank_, in, out);
  return *slot;
}

std::unique_ptr<TimedNetwork::Wire> TimedNetwork::Port::make_wire(Rank peer, std::uint32_t out,
                                                                  std::uint32_t in) {
  auto wire = std::make_unique<Wire>(network_, out, in);
  if (const auto chores = chores_.find(peer); chores != chores_.end()) wire->expect(chores->second);
  return wire;
}

void TimedNetwork::Port::expect(Rank peer, std::span<const Chore> chores) {
  const auto& slot = wires_[static_cast<std::size_t>(peer)];
  if (slot)
    slot->expect(chores);
  else
    chores_[peer] = chores;
}

transport::Io TimedNetwork::Wire::send_some(std::span<const std::byte> head,
                                            std::span<const std::byte> body) {
  Pipe& pipe = network_.pipes_[out_];
  const std::uint64_t room = network_.model_.window - pipe.under_way;
  const std::uint64_t wanted = head.size() + body.size();
  const std::uint64_t taken = std::min(wanted, room);
  pipe.is_full = taken < wanted;
  if (taken == 0) return nothing(pipe.from);
  const std::size_t of_head = std::min(taken, std::uint64_t{head.size()});
  pipe.carried.insert(pipe.carried.end(), head.begin(),
                      head.begin() + static_cast<std::ptrdiff_t>(of_head));
  if (network_.carries_data_)
    pipe.carried.insert(pipe.carried.end(), body.begin(),
                        body.begin() + static_cast<std::ptrdiff_t>(taken - of_head));
  network_.depart(out_, taken);
  return {taken, false};
}

transport::Io TimedNetwork::Wire::nothing(Rank rank) {
  network_.port(rank).work(nanos(network_.model_.look_us));
  return {};
}

std::uint64_t TimedNetwork::Wire::take(Pipe& pipe, std::uint64_t most) {
  std::uint64_t taken = 0;
  while (taken < most && pipe.first < pipe.arrived &&
         pipe.parcels[pipe.first].ready <= network_.now_) {
    Pipe::Parcel& parcel = pipe.parcels[pipe.first];
    const std::uint64_t part = std::min(most - taken, parcel.bytes);
    parcel.bytes -= part;
    taken += part;
    if (parcel.bytes == 0) ++pipe.first;
  }
  if (pipe.first == pipe.parcels.size()) {
    pipe.parcels.clear();
    pipe.first = pipe.arrived = 0;
  }
  return taken;
}

transport::Io TimedNetwork::Wire::recv_some(std::span<std::byte> head, std::span<std::byte> body) {
  Pipe& pipe = network_.pipes_[in_];
  const std::uint64_t taken = take(pipe, head.size() + body.size());
  if (taken == 0) return nothing(pipe.to);
  const std::size_t of_head = std::min(taken, std::uint64_t{head.size()});
  const std::size_t of_body = taken - of_head;
  if (of_head > 0) std::memcpy(head.data(), pipe.carried.data() + pipe.delivered, of_head);
  pipe.delivered += of_head;
  if (network_.carries_data_ && of_body > 0) {
    std::memcpy(body.data(), pipe.carried.data() + pipe.delivered, of_body);
    pipe.delivered += of_body;
  }
  if (pipe.delivered == pipe.carried.size()) {
    pipe.carried.clear();
    pipe.delivered = 0;
  }
  Port& port = network_.port(pipe.to);
  port.work(nanos(network_.model_.call_us) + network_.copy_time(taken) + chores_for(of_body));
  pipe.under_way -= taken;
  if (std::exchange(pipe.is_full, false))
    network_.push(port.busy_until + network_.latency(), kWakeUp, pipe.from);
  return {taken, false};
}

Nanos TimedNetwork::Wire::chores_for(std::uint64_t bytes) {
  Nanos work = 0;
  while (bytes > 0 && !chores_.empty()) {
    const Chore& chore = chores_.front();
    const std::uint64_t part = std::min(bytes, chore.bytes - done_of_chore_);
    done_of_chore_ += part;
    bytes -= part;
    if (done_of_chore_ < chore.bytes) break;
    work += network_.time_for(chore);
    chores_ = chores_.subspan(1);
    done_of_chore_ = 0;
  }
  return work;
}

TimedNetwork::TimedNetwork(const NetworkModel& model, Rank ranks, bool carries_data)
    : model_(model), carries_data_(carries_data), dice_(model.seed) {
  for (Rank rank = 0; rank < ranks; ++rank) {
    ports_.push_back(std::make_unique<Port>(*this, rank, ranks));
    constexpr std::uint64_t kFine = 1'000'000;
    const double drawn = static_cast<double>(dice_.below(kFine)) / static_cast<double>(kFine);
    if (drawn < model.slow_share) ports_.back()->slowness = model.slow_factor;
  }
}

TimedNetwork::~TimedNetwork() = default;

transport::Peers& TimedNetwork::peers(Rank rank) {
  return port(rank);
}

void TimedNetwork::expect(Rank rank, Rank peer, std::span<const Chore> chores) {
  port(rank).expect(peer, chores);
}

void TimedNetwork::compute(Rank rank, const Chore& chore) {
  port(rank).work(time_for(chore));
}

Nanos TimedNetwork::copy_time(std::uint64_t bytes) const {
  return time_of(bytes, model_.copy_gb_s);
}

Nanos TimedNetwork::time_for(const Chore& chore) const {
  return time_of(chore.added_bytes, model_.reduce_gb_s) + copy_time(chore.copied_bytes);
}

std::size_t TimedNetwork::connections(Rank rank) const {
  return ports_[static_cast<std::size_t>(rank)]->connections();
}

std::uint32_t TimedNetwork::add_pipe(Rank from, Rank to) {
  pipes_.emplace_back();
  pipes_.back().from = from;
  pipes_.back().to = to;
  return static_cast<std::uint32_t>(pipes_.size() - 1);
}

void TimedNetwork::push(Nanos at, std::uint32_t pipe, Rank rank) {
  events_.push({at, nth_++, pipe, rank});
}

Nanos TimedNetwork::latency() {
  if (model_.jitter == 0) return nanos(model_.latency_us);
  constexpr double kWhole = 9007199254740992.0;  // 2^53: Box and Muller's normal from two evens.
  const double u = (static_cast<double>(dice_.any() >> 11) + 0.5) / kWhole;
  const double v = static_cast<double>(dice_.any() >> 11) / kWhole;
  const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  return nanos(model_.latency_us * std::exp(model_.jitter * normal));
}

// The port sends one parcel after the other.
// What one call sends leaves while the rest of it is still being copied, and comes so.
void TimedNetwork::depart(std::uint32_t index, std::uint64_t bytes) {
  Pipe& pipe = pipes_[index];
  Port& sender = port(pipe.from);
  sender.work(nanos(model_.call_us));
  const Nanos way = latency();
  for (std::uint64_t left = bytes; left > 0;) {
    const std::uint64_t part = std::min(left, kSegmentBytes);
    left -= part;
    sender.work(copy_time(part));
    const Nanos begins = std::max(sender.busy_until, sender.out_free);
    const auto lasts =
        static_cast<Nanos>(static_cast<double>(time_of(part, model_.port_gb_s)) * sender.slowness);
    sender.out_free = begins + lasts;
    pipe.last_arrival = std::max(pipe.last_arrival, begins + way);
    pipe.parcels.push_back({pipe.last_arrival + lasts, part});
    push(pipe.last_arrival, index, pipe.to);
  }
  pipe.under_way += bytes;
  ++messages_;
}

// The first bit of the next parcel is at the receiver's port, which takes them in as they come.
void TimedNetwork::arrive(Pipe& pipe, Rank to) {
  Pipe::Parcel& parcel = pipe.parcels[pipe.arrived++];
  Port& receiver = port(to);
  const auto lasts = static_cast<Nanos>(
      static_cast<double>(time_of(parcel.bytes, model_.port_gb_s)) * receiver.slowness);
  receiver.in_free = std::max(parcel.ready, std::max(receiver.in_free, now_) + lasts);
  parcel.ready = receiver.in_free;
  push(parcel.ready, kWakeUp, to);
}

Rank TimedNetwork::next() {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.at;
    if (event.pipe != kWakeUp) {
      arrive(pipes_[event.pipe], event.rank);
      continue;
    }
    Port& waking = port(event.rank);
    if (waking.is_through) continue;
    if (waking.busy_until <= now_) {
      waking.will_wake = false;
      waking.busy_until = now_;
      return event.rank;
    }
    if (!waking.will_wake) push(waking.busy_until, kWakeUp, event.rank);
    waking.will_wake = true;
  }
  if (left_ > 0) throw InternalError(str(left_, " ranks wait for each other for ever"));
  return -1;
}

void TimedNetwork::end_turn(Rank rank, bool is_through) {
  if (!is_through) return;
  port(rank).is_through = true;
  last_ = std::max({last_, now_, port(rank).busy_until});
  --left_;
}

}  // namespace gradring::sim
