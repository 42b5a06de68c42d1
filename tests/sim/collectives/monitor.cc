#include "sim/collectives/monitor.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/config.h"

namespace gradring::sim {
namespace {

// As in transport/membership/monitor.cc.
constexpr Millis kGoodbyeTime{200};

bool is_empty(const transport::Membership::Actions& actions) {
  return actions.send.empty() && actions.disconnect.empty() && !actions.connect &&
         actions.probe.empty() && actions.gone.empty() && actions.aborted.empty() &&
         actions.shrunk.empty() && actions.left.empty() && actions.contested.empty();
}

Failure to_failure(const wire::Lost& lost, Rank self) {
  if (lost.rank == self)
    return {ErrorKind::kPeerLost, self, str("this rank was given up by the others: ", lost.text)};
  return {ErrorKind::kPeerLost, lost.rank, lost.text};
}

}  // namespace

Monitor::Monitor(Rank rank, Rank world_size, Millis heartbeat_timeout, Network& network,
                 Trace& trace)
    : rank_(rank),
      network_(network),
      trace_(trace),
      membership_({rank, world_size, heartbeat_timeout, {}}, network.now()) {}

void Monitor::adopt(Rank peer, std::unique_ptr<transport::Link> control) {
  controls_[peer].link = std::move(control);
  Actions actions;
  membership_.on_connected(peer, network_.now(), actions);
}

void Monitor::add(std::shared_ptr<transport::Group> group) {
  for (const wire::Lost& lost : gone_) {
    if (!group->has_member(lost.rank)) continue;
    lost.has_left ? group->mark_left(lost.rank, lost.text) : group->fail(to_failure(lost, rank_));
  }
  groups_[group->id] = std::move(group);
}

std::unique_ptr<transport::Link> Monitor::take(std::uint64_t communicator, Rank from) {
  const auto found = arrivals_.find({communicator, from});
  if (found == arrivals_.end()) return nullptr;
  auto link = std::move(found->second);
  arrivals_.erase(found);
  return link;
}

bool Monitor::step() {
  if (has_left_) return false;
  Actions actions;
  bool moved = false;
  if (leaves_at_ != Time{}) return say_goodbye();
  moved |= answer_door(actions);
  moved |= finish_connecting(actions);
  moved |= work_probes(actions);
  moved |= read_controls(actions);
  for (const wire::Abort& abort : std::exchange(aborts_, {})) membership_.abort(abort, actions);
  for (const auto& request : std::exchange(shrinks_, {})) membership_.shrink(request, actions);
  moved |= tick(actions);
  if (is_leaving_) {
    membership_.leave(actions);
    leaves_at_ = network_.now() + kGoodbyeTime;
  }
  moved |= !is_empty(actions);
  carry_out(actions);
  return flush_controls() || moved;
}

Time Monitor::next_event() const {
  if (has_left_) return Time::max();
  return leaves_at_ != Time{} ? leaves_at_ : next_beat_;
}

bool Monitor::answer_door(Actions& actions) {
  const std::vector<Attempt*> arrived = network_.arrived(rank_);
  for (Attempt* attempt : arrived) {
    auto link = network_.accept(*attempt);
    if (attempt->communicator == kControl) {
      trace_.note(network_.now(), rank_, str("lets in a control connection of ", attempt->from));
      controls_[attempt->from] = Control{std::move(link), {}, {}};
      membership_.on_connected(attempt->from, network_.now(), actions);
    } else if (attempt->communicator != kProbe) {
      arrivals_[{attempt->communicator, attempt->from}] = std::move(link);
    }
  }
  return !arrived.empty();
}

bool Monitor::finish_connecting(Actions& actions) {
  if (attempt_ == nullptr) return false;
  const Rank peer = attempt_->to;
  const Attempt::State state = network_.answer(*attempt_);
  const bool is_wanted = membership_.is_alive(peer);
  if (is_wanted && state == Attempt::State::kWaiting) return false;
  auto link = std::move(attempt_->near);
  network_.give_up(std::exchange(attempt_, nullptr));
  if (!is_wanted) return true;
  if (state == Attempt::State::kConnected) {
    controls_[peer] = Control{std::move(link), {}, {}};
    membership_.on_connected(peer, network_.now(), actions);
  } else {
    membership_.on_refused(peer, network_.now(), actions);
  }
  trace_.note(network_.now(), rank_,
              str(state == Attempt::State::kConnected ? "connected to " : "cannot reach ", peer));
  return true;
}

bool Monitor::work_probes(Actions& actions) {
  return std::erase_if(probes_, [&](Attempt* probe) {
           const Rank peer = probe->to;
           const Attempt::State state = network_.answer(*probe);
           if (state == Attempt::State::kWaiting) return false;
           network_.give_up(probe);
           if (state == Attempt::State::kRefused && membership_.is_alive(peer)) {
             trace_.note(network_.now(), rank_, str("nobody listens at rank ", peer));
             membership_.on_refused(peer, network_.now(), actions);
           }
           return true;
         }) > 0;
}

bool Monitor::tick(Actions& actions) {
  const Time now = network_.now();
  if (now < next_beat_) return false;
  std::vector<wire::CallState> calls;
  for (const auto& [id, group] : groups_) calls.push_back(group->call());
  membership_.on_tick(now, calls, actions);
  next_beat_ = now + membership_.beat_interval();
  return true;
}

void Monitor::carry_out(Actions& actions) {
  tell_groups(actions);
  for (const auto& [peer, message] : actions.send) {
    const auto control = controls_.find(peer);
    if (control == controls_.end()) continue;
    const std::vector<std::byte> payload = wire::encode(message);
    const auto length = static_cast<std::uint32_t>(payload.size());
    const auto head = std::as_bytes(std::span(&length, 1));
    auto& out = control->second.out;
    out.insert(out.end(), head.begin(), head.end());
    out.insert(out.end(), payload.begin(), payload.end());
  }
  flush_controls();
  for (const Rank rank : actions.contested)
    for (const auto& [id, group] : groups_)
      if (group->failure().kind == ErrorKind::kPeerLost && group->failure().rank == rank)
        report({id, group->call().seq, rank_, group->failure()});
  for (const Rank peer : actions.disconnect) part_from(peer);
  for (const Rank peer : actions.probe) probe(peer);
  if (!actions.connect || (attempt_ != nullptr && attempt_->to == *actions.connect)) return;
  if (attempt_ != nullptr) network_.give_up(attempt_);
  attempt_ = network_.connect(rank_, *actions.connect, kControl,
                              {.capacity_bytes = limits::kControlFrameBytes});
}

void Monitor::probe(Rank peer) {
  const auto is_asked = [&](const Attempt* other) { return other->to == peer; };
  if (std::none_of(probes_.begin(), probes_.end(), is_asked))
    probes_.push_back(network_.connect(rank_, peer, kProbe, {.capacity_bytes = 1}));
}

// A kernel with room takes what is left to say at once; a link that is short takes it in pieces.
void Monitor::part_from(Rank peer) {
  constexpr int kPieces = 100;
  const auto control = controls_.find(peer);
  if (control == controls_.end()) return;
  for (int piece = 0; piece < kPieces && !control->second.out.empty(); ++piece)
    flush_control(control->second);
  controls_.erase(control);
}

void Monitor::tell_groups(const Actions& actions) {
  for (const wire::Lost& lost : actions.gone)
    trace_.note(network_.now(), rank_,
                str(lost.has_left ? "hears that rank left: " : "hears that rank is lost: ",
                    lost.rank, ": ", lost.text));
  gone_.insert(gone_.end(), actions.gone.begin(), actions.gone.end());
  for (const auto& [id, group] : groups_) {
    for (const wire::Lost& lost : actions.gone) {
      if (!group->has_member(lost.rank)) continue;
      lost.has_left ? group->mark_left(lost.rank, lost.text) : group->fail(to_failure(lost, rank_));
    }
    for (const wire::Abort& abort : actions.aborted) {
      if (abort.communicator != id) continue;
      Failure failure = abort.failure;
      if (abort.origin != rank_) failure.text += str(" (reported by rank ", abort.origin, ")");
      group->fail(failure);
    }
    for (const wire::ShrinkReply& reply : actions.shrunk)
      if (reply.communicator == id) group->settle_shrink(reply.survivors);
  }
}

bool Monitor::read_controls(Actions& actions) {
  bool moved = false;
  std::vector<std::pair<Rank, std::string>> closed;
  for (auto& [peer, control] : controls_) {
    const std::size_t had = control.in.size();
    std::string why;
    if (!read_control(peer, control, why, actions)) closed.emplace_back(peer, why);
    moved |= control.in.size() != had;
  }
  for (const auto& [peer, why] : closed) {
    controls_.erase(peer);
    trace_.note(network_.now(), rank_, str("lost its control connection to ", peer));
    membership_.on_closed(peer, network_.now(), why, actions);
  }
  return moved || !closed.empty();
}

bool Monitor::read_control(Rank peer, Control& control, std::string& why, Actions& actions) {
  std::array<std::byte, 512> chunk;
  bool is_open = true;
  while (is_open) {
    const transport::Io io = control.link->recv_some(chunk, {});
    is_open = !io.closed;
    if (io.bytes == 0) break;
    control.in.insert(control.in.end(), chunk.begin(),
                      chunk.begin() + static_cast<std::ptrdiff_t>(io.bytes));
  }
  std::size_t at = 0;
  std::uint32_t length = 0;
  while (control.in.size() - at >= sizeof length) {
    std::memcpy(&length, control.in.data() + at, sizeof length);
    if (control.in.size() - at - sizeof length < length) break;
    const auto payload = std::span(control.in).subspan(at + sizeof length, length);
    membership_.on_message(peer, wire::decode_message(payload), network_.now(), actions);
    at += sizeof length + length;
  }
  control.in.erase(control.in.begin(), control.in.begin() + static_cast<std::ptrdiff_t>(at));
  why = "closed its control connection: its process ended";
  return is_open;
}

bool Monitor::flush_controls() {
  bool moved = false;
  for (auto& [peer, control] : controls_) moved |= flush_control(control);
  return moved;
}

bool Monitor::flush_control(Control& control) {
  bool moved = false;
  while (!control.out.empty()) {
    const transport::Io io = control.link->send_some(control.out, {});
    control.out.erase(control.out.begin(),
                      control.out.begin() + static_cast<std::ptrdiff_t>(io.bytes));
    if (io.closed) control.out.clear();
    moved |= io.bytes > 0;
    if (io.bytes == 0) break;
  }
  return moved;
}

bool Monitor::say_goodbye() {
  Actions actions;
  bool moved = finish_connecting(actions);
  carry_out(actions);
  moved |= flush_controls();
  const bool is_said = attempt_ == nullptr &&
                       std::all_of(controls_.begin(), controls_.end(),
                                   [](const auto& entry) { return entry.second.out.empty(); });
  if (!is_said && network_.now() < leaves_at_) return moved;
  has_left_ = true;
  controls_.clear();
  return true;
}

}  // namespace gradring::sim
