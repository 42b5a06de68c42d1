#include "ps/client/session.h"

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

void Session::add(const std::shared_ptr<Call>& call, std::size_t part) {
  const bool is_numbered = wire::is_numbered(call->parts()[part].header.type);
  items_.push_back({.call = call,
                    .part = part,
                    .waits = call->may_wait() && !is_numbered,
                    .seq = is_numbered ? last_seq_ + 1 : 0,
                    .after = last_seq_});
  if (is_numbered) ++last_seq_;
  if (items_.back().waits) ++waits_;
  if (is_urgent(items_.back())) ++urgent_;
}

void Session::take_back(const Call& call) {
  while (!items_.empty() && items_.back().call.get() == &call) {
    if (is_urgent(items_.back())) --urgent_;
    if (items_.back().seq != 0) --last_seq_;
    if (items_.back().waits) --waits_;
    items_.pop_back();
  }
}

void Session::drop(const Call& call) {
  for (std::size_t at = 0; at < items_.size();) {
    Item& item = items_[at];
    if (item.call.get() != &call || item.is_dropped) {
      ++at;
      continue;
    }
    if (out_bytes_ > 0 && item.request == out_request_ && out_sent_ == 0) {
      take_back_to(at);  // It was the last one begun.
      flight_bytes_ -= item.bytes;
    }
    item.call->release(item.part);
    if (item.seq == 0) {
      if (at < next_) abandoned_.push_back({item.request, item.bytes});
      settle(at);
      continue;
    }
    item.is_dropped = true;
    ++at;
  }
  // Whatever became of its request meanwhile. Half a frame on the wire cannot be taken back.
  if (out_bytes_ > 0 && out_call_ == &call) {
    wants_hang_up_ |= out_sent_ > 0;
    end_output();
  }
}

bool Session::is_awaited(std::uint64_t request) const {
  const std::size_t at = find(request);
  return at < next_ && !items_[at].is_dropped;
}

bool Session::wants_connection(Time now) const {
  return state_ == State::kDown && is_wanted() && now >= next_try_;
}

void Session::connected(Time now) {
  state_ = State::kGreeting;
  wants_hang_up_ = false;
  next_ = waiting_ = 0;
  flight_bytes_ = waiting_bytes_ = 0;
  abandoned_.clear();
  begin_hello();
  next_try_ = now;
  greeted_at_ = now;
}

void Session::disconnected(const std::string& why, Time now) {
  // After one that has worked at once, then in growing steps.
  state_ = State::kDown;
  trouble_ = why;
  wants_hang_up_ = false;
  end_output();
  next_try_ = now + backoff_;
  backoff_ = std::min(std::max(backoff_ * 2, kFirstBackoff), kMostBackoff);
}

void Session::end_output() {
  out_bytes_ = 0;
  out_body_ = {};
  out_call_ = nullptr;
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
  if (item.seq != 0) put(tail, item.call->state().tail);
  if (!item.is_dropped) {
    Part& part = item.call->parts()[item.part];
    header = part.header;
    head = part.head;
    out_body_ = item.call->body(item.part);
    out_call_ = item.call.get();
  } else {
    header.type = wire::PsType::kLeave;
    header.a = kNobodysDomain;
  }
  out_is_first_try_ = item.request == 0;
  header.request = item.request = ++last_request_;
  header.seq = item.seq != 0 ? item.seq : item.after;
  begun_ = std::max(begun_, item.seq);
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

// Without memory for it, it is still the next one.
void Session::begin_next(Time now) {
  Item& item = items_[next_];
  reserve_more(abandoned_, next_ + 1);
  begin(item);
  item.sent_at = now;
  ++next_;
  if (!item.waits) return;
  ++waiting_;
  waiting_bytes_ += item.bytes;
}

// Those from there on are not under way any more.
void Session::take_back_to(std::size_t at) {
  while (next_ > at) {
    if (!items_[--next_].waits) continue;
    --waiting_;
    waiting_bytes_ -= items_[next_].bytes;
  }
}

// What ends a freeze: shards may hold our own changes until then, and no room would ever come.
bool Session::is_urgent(const Item& item) {
  if (item.is_dropped) return false;
  switch (item.call->parts()[item.part].header.type) {
    case wire::PsType::kFreeze:
    case wire::PsType::kAdvance:
    case wire::PsType::kCut:
    case wire::PsType::kThaw: return true;
    default: return false;
  }
}

// Brings it before all that has not begun; whether there was one.
bool Session::take_urgent() {
  if (urgent_ == 0) return false;
  const auto begin = items_.begin() + static_cast<std::ptrdiff_t>(next_);
  const auto found = std::find_if(begin, items_.end(), is_urgent);
  if (found == items_.end()) return false;
  std::rotate(begin, found, found + 1);
  return true;
}

// The same for the first one that waits for nobody, before those that wait for others: it may be
// what they wait for.
bool Session::take_other() {
  if (!items_[next_].waits || items_.size() - next_ == waits_ - waiting_) return false;
  const auto begin = items_.begin() + static_cast<std::ptrdiff_t>(next_);
  const auto found =
      std::find_if(begin, items_.end(), [](const Item& item) { return !item.waits; });
  std::rotate(begin, found, found + 1);
  return true;
}

// A frozen shard may hold what was given up here as well, and then it holds more than it reads for:
// what is urgent would lie behind that until the freeze melts.
bool Session::may_be_stuck() const {
  std::uint64_t bytes = flight_bytes_;
  for (const Abandoned& one : abandoned_) bytes += one.bytes;
  return !abandoned_.empty() && bytes >= options_.flight_bytes;
}

// What waits for others is bounded by its bytes alone, as on the shard, and leaves the rest to what
// does not: it would keep that waiting, and those of its call that have no room would wait one
// after the other.
bool Session::has_room_for(const Item& item) const {
  if (next_ == 0) return true;
  if (flight_bytes_ >= options_.flight_bytes) return false;
  if (item.waits) return waiting_bytes_ < options_.flight_bytes / 2;
  return next_ - waiting_ < limits::kPsFlightRequests;
}

Output Session::output(Time now) {
  if (state_ == State::kDown || wants_hang_up_) return {};
  if (out_bytes_ == 0) {
    if (state_ != State::kUp) return {};
    if (take_urgent() && may_be_stuck()) {
      trouble_ = "it may hold so much of what was given up that it reads no further";
      wants_hang_up_ = true;
      return {};
    }
    if (next_ == items_.size()) return {};
    if (!has_room_for(items_[next_]) && !is_urgent(items_[next_]) &&
        !(take_other() && has_room_for(items_[next_])))
      return {};
    begin_next(now);
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
  if (const std::size_t at = find(out_request_); at < next_) {
    Item& item = items_[at];
    item.sent_at = now;
    if (!item.is_dropped) item.call->sent(item.part);
  }
  end_output();
}

// Where it is among those under way; next_ if it is not.
std::size_t Session::find(std::uint64_t request) const {
  std::size_t at = 0;
  while (at < next_ && items_[at].request != request) ++at;
  return at;
}

// The one whose answer has to come next; next_ if there is none. What waits at a gate may come
// late.
std::size_t Session::foremost() const {
  std::size_t at = 0;
  while (at < next_ && items_[at].waits) ++at;
  return at;
}

// Mostly the first one; others overtake only what waits at a gate.
void Session::settle(std::size_t at) {
  if (at < next_) {
    flight_bytes_ -= items_[at].bytes;
    --next_;
    if (items_[at].waits) --waiting_;
    if (items_[at].waits) waiting_bytes_ -= items_[at].bytes;
  }
  if (items_[at].waits) --waits_;
  if (is_urgent(items_[at])) --urgent_;
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(at));
}

void Session::fail(ErrorKind kind, const std::string& text) {
  failure_ = {kind, -1, text};
  wants_hang_up_ = true;
}

// By when the server has to answer something on this connection.
Time Session::answer_due() const {
  if (state_ == State::kGreeting) return greeted_at_ + options_.answer_time;
  const std::size_t at = foremost();
  if (at == next_ || (out_bytes_ > 0 && items_[at].request == out_request_)) return Time::max();
  return std::max(items_[at].sent_at, moved_at_) + options_.answer_time;
}

void Session::tick(Time now) {
  if (state_ == State::kDown || wants_hang_up_ || now < answer_due()) return;
  trouble_ = str("no answer for ", options_.answer_time.count(), " ms");
  wants_hang_up_ = true;
}

Time Session::next_tick() const {
  if (state_ == State::kDown) return is_wanted() ? next_try_ : Time::max();
  return answer_due();
}

}  // namespace gradring::ps
