#include "collectives/engine/run.h"

#include <algorithm>

#include "base/error.h"

namespace gradring::collectives {
namespace {

// A turn of one stream: enough to amortize the system call, little enough that the others get
// theirs.
constexpr std::uint64_t kTurnBytes = 512 * 1024;

bool is_local(ActionKind kind) {
  return kind == ActionKind::kReduce || kind == ActionKind::kCopy;
}

}  // namespace

PlanRun::PlanRun(const Plan& plan, const Call& call, std::uint64_t seq,
                 const kernels::Reduction& reduction, RunBuffers buffers)
    : plan_(plan),
      call_(call),
      seq_(seq),
      reduction_(reduction),
      buffers_(buffers),
      left_(plan.actions.size()) {
  waiting_.reserve(plan.actions.size());
  follows_.resize(plan.actions.size(), kNone);
  for (std::uint32_t index = 0; index < plan.actions.size(); ++index) {
    const Action& action = plan.actions[index];
    waiting_.push_back(action.wait_count);
    if (is_local(action.kind)) {
      if (action.wait_count == 0) ready_.push_back(index);
      continue;
    }
    Stream& stream = stream_to(action.kind == ActionKind::kSend ? sends_ : recvs_, action.peer);
    (stream.last == kNone ? stream.action : follows_[stream.last]) = index;
    stream.last = index;
    stream.expected_bytes += action.bytes;
    if (index < plan.tokens) stream.token_bytes += action.bytes;
  }
  for (Stream& stream : sends_) stream.header = wire::encode({call, seq, 0, stream.expected_bytes});
}

PlanRun::Stream& PlanRun::stream_to(std::vector<Stream>& streams, Rank peer) {
  // Few peers, and mostly the last one again.
  for (auto stream = streams.rbegin(); stream != streams.rend(); ++stream)
    if (stream->peer == peer) return *stream;
  streams.emplace_back();
  streams.back().peer = peer;
  return streams.back();
}

bool PlanRun::advance(transport::Peers& peers) {
  has_moved_ = false;
  while (true) {
    while (!ready_.empty()) {
      const std::uint32_t index = ready_.back();
      ready_.pop_back();
      execute(plan_.actions[index]);
      complete(index);
      has_moved_ = true;
    }
    if (left_ == 0) return true;
    bool moved = false;
    for (Stream& stream : sends_) moved |= !stream.is_done() && push(stream, peers);
    for (Stream& stream : recvs_) moved |= !stream.is_done() && pull(stream, peers);
    if (!moved && ready_.empty()) return false;
    has_moved_ = true;
  }
}

// How much from here on lies together in memory and may move now: pieces that nobody waits for one
// by one cost one system call.
std::uint64_t PlanRun::together(const Stream& stream) const {
  const Action* last = &plan_.actions[stream.action];
  std::uint64_t bytes = last->bytes - stream.action_bytes;
  for (std::uint32_t next = follows_[stream.action]; next != kNone && bytes < kTurnBytes;
       next = follows_[next]) {
    const Action& action = plan_.actions[next];
    const bool follows = action.at.place == last->at.place &&
                         action.at.offset_bytes == last->at.offset_bytes + last->bytes;
    if (!follows || waiting_[next] != 0) break;
    bytes += action.bytes;
    last = &action;
  }
  return std::min(bytes, kTurnBytes);
}

bool PlanRun::push(Stream& stream, transport::Peers& peers) {
  const std::uint32_t index = stream.action;
  if (waiting_[index] != 0) return false;
  transport::Link* link = peers.link(stream.peer);
  if (link == nullptr) return false;
  const Action& action = plan_.actions[index];
  const auto head = std::span<const std::byte>(stream.header).subspan(stream.header_bytes);
  const std::span body(at(action.at) + stream.action_bytes, together(stream));
  const transport::Io io = link->send_some(head, body);
  if (io.closed) throw LinkClosed{stream.peer, false, stream.payload(), stream.expected_payload()};
  return count_bytes(stream, io.bytes);
}

bool PlanRun::pull(Stream& stream, transport::Peers& peers) {
  const std::uint32_t index = stream.action;
  const bool may_take_body = waiting_[index] == 0;
  const bool has_header = stream.header_bytes == wire::kOpHeaderBytes;
  if (has_header && !may_take_body) return false;
  transport::Link* link = peers.link(stream.peer);
  if (link == nullptr) return false;
  const Action& action = plan_.actions[index];
  const auto head = std::span(stream.header).subspan(stream.header_bytes);
  // The header and the first bytes behind it come in one call. Where a wrong call would spill into
  // the user's memory, few of them, and by a detour.
  const bool takes_detour = !has_header && action.at.place != Place::kScratch;
  const bool fits_detour = action.bytes <= detour_.size();
  std::uint64_t most = may_take_body && (!takes_detour || fits_detour) ? together(stream) : 0;
  if (takes_detour) most = std::min<std::uint64_t>(most, detour_.size());
  std::byte* const to = into(action.at) + stream.action_bytes;
  const transport::Io io = link->recv_some(head, {takes_detour ? detour_.data() : to, most});
  const bool moved = count_bytes(stream, io.bytes);
  if (!has_header && stream.header_bytes == wire::kOpHeaderBytes) {
    check_header(stream);
    if (takes_detour) std::copy_n(detour_.data(), io.bytes - head.size(), to);
  }
  if (io.closed && !stream.is_done())
    throw LinkClosed{stream.peer, true, stream.payload(), stream.expected_payload()};
  return moved;
}

// Books `bytes` that went over the link: first the rest of the header, then the current action.
// True if there were any.
bool PlanRun::count_bytes(Stream& stream, std::size_t bytes) {
  if (bytes == 0) return false;
  const std::size_t of_header = std::min(bytes, wire::kOpHeaderBytes - stream.header_bytes);
  stream.header_bytes += of_header;
  std::uint64_t left = bytes - of_header;
  stream.total_bytes += left;
  while (left > 0) {
    const std::uint32_t index = stream.action;
    const std::uint64_t taken = std::min(left, plan_.actions[index].bytes - stream.action_bytes);
    stream.action_bytes += taken;
    left -= taken;
    if (stream.action_bytes < plan_.actions[index].bytes) break;
    stream.action_bytes = 0;
    stream.action = follows_[index];
    complete(index);
  }
  return true;
}

void PlanRun::check_header(const Stream& stream) const {
  const wire::OpHeader theirs = wire::decode_op_header(stream.header);
  if (theirs.call == call_ && theirs.seq == seq_ && theirs.bytes == stream.expected_bytes)
      [[likely]]
    return;
  std::string mine = describe(call_, seq_);
  std::string other = describe(theirs.call, theirs.seq);
  if (mine == other) {  // Counts that the call itself does not show.
    const std::uint64_t theirs_payload = theirs.bytes - std::min(theirs.bytes, stream.token_bytes);
    mine += str(", expecting ", stream.expected_payload(), " bytes from it,");
    other += str(", sending ", theirs_payload);
  }
  throw CallsDiffer(stream.peer, std::move(mine), std::move(other), advice_on(call_, theirs.call));
}

void PlanRun::complete(std::uint32_t index) {
  --left_;
  const Action& action = plan_.actions[index];
  for (std::uint32_t i = 0; i < action.dependent_count; ++i) {
    const std::uint32_t dependent = plan_.dependents[action.first_dependent + i];
    if (--waiting_[dependent] == 0 && is_local(plan_.actions[dependent].kind))
      ready_.push_back(dependent);
  }
}

void PlanRun::execute(const Action& action) {
  if (action.kind == ActionKind::kCopy) {
    const std::byte* from = at(plan_.sources[action.first_source]);
    std::byte* to = into(action.at);
    if (from != to) kernels::copy(to, from, action.bytes);
    return;
  }
  operands_.clear();
  for (std::uint32_t i = 0; i < action.source_count; ++i)
    operands_.push_back(at(plan_.sources[action.first_source + i]));
  kernels::Reduction reduction = reduction_;
  reduction.fold = action.fold;
  if (!action.is_final) reduction.divisor = 1;
  kernels::reduce(into(action.at), operands_, action.bytes / item_bytes(reduction.dtype),
                  reduction);
}

const std::byte* PlanRun::at(Slice slice) const {
  switch (slice.place) {
    case Place::kInput: return buffers_.input + slice.offset_bytes;
    case Place::kOutput: return buffers_.output + slice.offset_bytes;
    case Place::kScratch: return buffers_.scratch + slice.offset_bytes;
  }
  return nullptr;
}

std::byte* PlanRun::into(Slice slice) const {
  return (slice.place == Place::kOutput ? buffers_.output : buffers_.scratch) + slice.offset_bytes;
}

void PlanRun::interests(transport::Peers& peers,
                        std::vector<transport::Interest>& interests) const {
  interests.clear();
  const auto find = [&](transport::Link* link) -> transport::Interest& {
    for (transport::Interest& interest : interests)
      if (interest.link == link) return interest;
    return interests.emplace_back(transport::Interest{link, false, false});
  };
  for (const Stream& stream : recvs_)
    if (!stream.is_done() &&
        (stream.header_bytes < wire::kOpHeaderBytes || waiting_[stream.action] == 0))
      find(peers.link(stream.peer)).wants_recv = true;
  for (const Stream& stream : sends_)
    if (!stream.is_done() && waiting_[stream.action] == 0)
      find(peers.link(stream.peer)).wants_send = true;
}

PlanRun::Traffic PlanRun::traffic() const {
  Traffic traffic;
  for (const Stream& stream : sends_) {
    traffic.sent += stream.payload();
    traffic.to_send += stream.expected_payload();
  }
  for (const Stream& stream : recvs_) {
    traffic.received += stream.payload();
    traffic.to_receive += stream.expected_payload();
  }
  return traffic;
}

Rank PlanRun::awaited() const {
  for (const auto* streams : {&recvs_, &sends_})
    for (const Stream& stream : *streams)
      if (!stream.is_done()) return stream.peer;
  return -1;
}

std::optional<StreamProgress> PlanRun::send_in_vain(
    const std::function<bool(Rank)>& has_left) const {
  for (const Stream& stream : sends_)
    if (!stream.is_done() && waiting_[stream.action] == 0 && has_left(stream.peer))
      return StreamProgress{stream.peer, false, stream.payload(), stream.expected_payload()};
  return std::nullopt;
}

std::vector<StreamProgress> PlanRun::unfinished() const {
  std::vector<StreamProgress> progress;
  for (const Stream& stream : recvs_)
    if (!stream.is_done())
      progress.push_back({stream.peer, true, stream.payload(), stream.expected_payload()});
  for (const Stream& stream : sends_)
    if (!stream.is_done() && stream.expected_payload() > 0)
      progress.push_back({stream.peer, false, stream.payload(), stream.expected_payload()});
  return progress;
}

}  // namespace gradring::collectives
