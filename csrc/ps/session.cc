#include "ps/session.h"

#include <algorithm>

#include "base/config.h"

namespace gradring::ps {
namespace {

constexpr Millis kFirstBackoff{10};
constexpr Millis kMostBackoff{1000};
constexpr std::uint64_t kNobodysDomain = ~std::uint64_t{0};

std::span<const std::byte> rest_of(std::span<const std::byte> bytes, std::size_t& skip) {
  const std::size_t skipped = std::min(skip, bytes.size());
  skip -= skipped;
  return bytes.subspan(skipped);
}

}  // namespace

void Session::add(const std::shared_ptr<Call>& call, std::size_t part, std::uint64_t seq) {
  items_.push_back({.call = call, .part = part, .seq = seq, .after = last_seq_});
}

void Session::drop(const Call& call) {
  for (std::size_t at = 0; at < items_.size(); ++at) {
    Item& item = items_[at];
    if (item.call.get() != &call || item.is_over) continue;
    if (out_bytes_ > 0 && item.request != 0 && item.request == out_request_) {
      // Half a frame on the wire cannot be taken back.
      wants_hang_up_ = out_sent_ > 0;
      if (out_sent_ == 0) {
        next_ = at;  // It was the last one begun.
        flight_bytes_ -= item.bytes;
      }
      out_bytes_ = 0;
      out_body_ = {};
    }
    item.call->release(item.part);
    if (item.seq == 0) {
      if (at < next_) flight_bytes_ -= item.bytes;
      settle(item);
      continue;
    }
    item.tail = item.call->state().tail;
    item.call.reset();
  }
  skip_finished();
}

bool Session::is_awaited(std::uint64_t request) const {
  for (std::size_t at = 0; at < next_; ++at)
    if (items_[at].request == request && !items_[at].is_over) return items_[at].call != nullptr;
  return false;
}

bool Session::wants_connection(Time now) const {
  return state_ == State::kDown && !failure_ && has_work() && now >= next_try_;
}

void Session::connected(Time now) {
  state_ = State::kGreeting;
  wants_hang_up_ = false;
  next_ = 0;
  flight_bytes_ = 0;
  skip_finished();
  begin_hello();
  next_try_ = now;
}

void Session::disconnected(const std::string& why, Time now) {
  // After one that has worked at once, then in growing steps.
  state_ = State::kDown;
  trouble_ = why;
  wants_hang_up_ = false;
  out_bytes_ = 0;
  out_body_ = {};
  next_try_ = now + backoff_;
  backoff_ = std::min(std::max(backoff_ * 2, kFirstBackoff), kMostBackoff);
}

void Session::begin_hello() {
  const Bytes hello = encode(options_.hello);
  wire::PsHeader header;
  header.type = wire::PsType::kHello;
  header.request = hello_request_ = ++last_request_;
  header.payload_bytes = hello.size();
  out_head_.clear();
  put_bytes(out_head_, wire::encode(header));
  put_bytes(out_head_, hello);
  out_body_ = {};
  out_sent_ = 0;
  out_bytes_ = out_head_.size();
  out_request_ = header.request;
  out_is_first_try_ = false;
}

// Puts the frame of an item together.
void Session::begin(Item& item) {
  wire::PsHeader header;
  Bytes tail;
  std::span<const std::byte> head;
  out_body_ = {};
  if (item.call) {
    Part& part = item.call->parts()[item.part];
    header = part.header;
    head = part.head;
    if (item.seq != 0) put(tail, item.call->state().tail);
    out_body_ = item.call->body(item.part);
  } else {
    header.type = wire::PsType::kLeave;
    header.a = kNobodysDomain;
    put(tail, item.tail);
  }
  out_is_first_try_ = item.request == 0;
  header.request = item.request = ++last_request_;
  header.seq = item.seq != 0 ? item.seq : item.after;
  header.payload_bytes =
      tail.size() + head.size() + out_body_.first.size() + out_body_.second.size();
  out_head_.clear();
  put_bytes(out_head_, wire::encode(header));
  put_bytes(out_head_, tail);
  put_bytes(out_head_, head);
  out_sent_ = 0;
  out_bytes_ = wire::kPsHeaderBytes + header.payload_bytes;
  out_request_ = item.request;
  item.bytes = out_bytes_;
  flight_bytes_ += item.bytes;
}

bool Session::has_room() const {
  return next_ == 0 ||
         (flight_bytes_ < limits::kPsFlightBytes && next_ < limits::kPsFlightRequests);
}

Output Session::output(Time now) {
  if (state_ == State::kDown || wants_hang_up_) return {};
  if (out_bytes_ == 0) {
    if (state_ != State::kUp) return {};
    while (next_ < items_.size() && items_[next_].is_over) ++next_;
    if (next_ == items_.size() || !has_room()) return {};
    Item& item = items_[next_++];
    begin(item);
    item.sent_at = now;
  }
  Output output;
  std::size_t skip = out_sent_;
  output.spans[0] = rest_of(out_head_, skip);
  output.spans[1] = rest_of(out_body_.first, skip);
  output.spans[2] = rest_of(out_body_.second, skip);
  return output;
}

void Session::sent(std::size_t bytes, Time now) {
  if (bytes == 0) return;
  out_sent_ += bytes;
  // Bytes that go out again and again are no progress.
  if (out_is_first_try_) progress_at_ = now;
  if (out_sent_ < out_bytes_) return;
  if (Item* item = find(out_request_)) item->sent_at = now;
  out_bytes_ = 0;
  out_body_ = {};
}

Session::Item* Session::find(std::uint64_t request) {
  for (std::size_t at = 0; at < next_; ++at)
    if (items_[at].request == request && !items_[at].is_over) return &items_[at];
  return nullptr;
}

void Session::settle(Item& item) {
  item.is_over = true;
  item.call.reset();
}

void Session::skip_finished() {
  while (!items_.empty() && items_.front().is_over) {
    items_.pop_front();
    if (next_ > 0) --next_;
  }
}

std::span<std::byte> Session::destination(const wire::PsHeader& answer) {
  const Item* item = find(answer.request);
  if (item == nullptr || !item->call) return {};
  return item->call->destination(item->part, answer);
}

void Session::receive(const wire::PsHeader& answer, std::span<const std::byte> payload, Time now) {
  if (state_ == State::kGreeting) {
    if (answer.request != hello_request_) throw ProtocolError("an answer before the welcome");
    if (answer.type == wire::PsType::kError)
      return fail(static_cast<ErrorKind>(answer.a), decode_text(payload));
    if (answer.type != wire::PsType::kWelcome) throw ProtocolError("no welcome");
    return take_welcome(answer, payload);
  }
  Item* item = find(answer.request);
  if (item == nullptr) return;  // Of an earlier try, or nobody's any more.
  if (answer.type == wire::PsType::kOutOfOrder) return go_back(answer.b);
  // A welcome is none: a server may greet for ever and never answer.
  progress_at_ = now;
  backoff_ = Millis{0};
  if (item->seq != 0) acknowledged_ = std::max(acknowledged_, item->seq);
  flight_bytes_ -= item->bytes;
  if (item->call) this->answer(*item, answer, payload);
  settle(*item);
  skip_finished();
}

void Session::answer(Item& item, const wire::PsHeader& header, std::span<const std::byte> payload) {
  Call& call = *item.call;
  call.release(item.part);
  if (header.type == wire::PsType::kError) {
    const bool has_rank = header.b <= limits::kWorldSize;
    call.note_failure({static_cast<ErrorKind>(header.a),
                       has_rank ? static_cast<Rank>(header.b) : Rank{-1},
                       str(call.what(), ", ", options_.address, ": ", decode_text(payload))});
  } else {
    try {
      call.take(item.part, header, payload);
    } catch (const ProtocolError& error) {
      call.note_failure({ErrorKind::kProtocolError, -1,
                         str(call.what(), ", ", options_.address, ": ", error.what())});
    }
  }
  call.parts()[item.part].is_answered = true;
  ++call.state().answered;
}

void Session::take_welcome(const wire::PsHeader& header, std::span<const std::byte> payload) {
  const Welcome welcome = decode_welcome(payload);
  if (welcome.shard != options_.shard || welcome.shards != options_.shards)
    return fail(ErrorKind::kMismatch,
                str("it is shard ", welcome.shard, " of ", welcome.shards, ", expected was shard ",
                    options_.shard, " of ", options_.shards,
                    ": the servers' addresses are in another order, or there are others"));
  if (header.b < acknowledged_)
    return fail(ErrorKind::kPeerLost,
                str("the server has lost its state: it knows ", header.b, " of the ", acknowledged_,
                    " changes that it had acknowledged to this client (it was started again "
                    "without its log). Restore a checkpoint and connect anew"));
  options_.incarnation = header.a;
  state_ = State::kUp;
}

// The server has seen a gap: everything numbered after `last_done` goes out once more.
void Session::go_back(std::uint64_t last_done) {
  if (last_done < acknowledged_)
    return fail(ErrorKind::kPeerLost,
                str("the server has gone back from change ", acknowledged_, " to ", last_done));
  std::size_t first = next_;
  for (std::size_t at = next_; at-- > 0;)
    if (items_[at].seq > last_done && !items_[at].is_over) first = at;
  for (std::size_t at = first; at < next_; ++at) {
    Item& item = items_[at];
    if (item.is_over) continue;
    flight_bytes_ -= item.bytes;
    // What is half on the wire goes on; it will be answered with "out of order" again, by a number
    // that nobody waits for.
    item.request = ~std::uint64_t{0};
  }
  next_ = first;
}

void Session::fail(ErrorKind kind, const std::string& text) {
  failure_ = {kind, -1, text};
  wants_hang_up_ = true;
}

void Session::tick(Time now) {
  if (state_ == State::kDown || wants_hang_up_) return;
  for (std::size_t at = 0; at < next_; ++at) {
    const Item& item = items_[at];
    const bool is_being_sent = out_bytes_ > 0 && item.request == out_request_;
    if (item.is_over || is_being_sent || (item.call && item.call->may_wait())) continue;
    if (now < std::max(item.sent_at, moved_at_) + options_.answer_time) return;
    trouble_ = str("no answer for ", options_.answer_time.count(), " ms");
    wants_hang_up_ = true;
    return;
  }
}

Time Session::next_tick() const {
  Time next = Time::max();
  if (state_ == State::kDown) return has_work() && !failure_ ? next_try_ : next;
  for (std::size_t at = 0; at < next_; ++at)
    if (!items_[at].is_over) return std::max(items_[at].sent_at, moved_at_) + options_.answer_time;
  return next;
}

}  // namespace gradring::ps
