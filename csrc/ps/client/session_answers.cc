// Session: what comes back from the shard, and what it says of the requests under way.
#include <algorithm>

#include "base/config.h"
#include "ps/client/session.h"

namespace gradring::ps {

std::span<std::byte> Session::destination(const wire::PsHeader& answer) {
  const std::size_t at = find(answer.request);
  if (at == next_ || items_[at].is_dropped) return {};
  return items_[at].call->destination(items_[at].part, answer);
}

void Session::receive(const wire::PsHeader& answer, std::span<const std::byte> payload, Time now) {
  if (state_ == State::kGreeting) {
    if (answer.request != hello_request_) throw ProtocolError("an answer before the welcome");
    if (answer.type == wire::PsType::kError)
      return fail(static_cast<ErrorKind>(answer.a), decode_text(payload));
    if (answer.type != wire::PsType::kWelcome) throw ProtocolError("no welcome");
    return take_welcome(answer, payload);
  }
  if (out_bytes_ > 0 && answer.request == out_request_)
    throw ProtocolError("an answer to a request that is not sent yet");
  std::erase_if(abandoned_, [&](const Abandoned& one) { return one.request == answer.request; });
  const std::size_t at = find(answer.request);
  if (at == next_) return;  // Of an earlier try, or nobody's any more.
  if (answer.type == wire::PsType::kOutOfOrder) return go_back(answer.b);
  // A welcome is none: a server may greet for ever and never answer.
  progress_at_ = now;
  backoff_ = Millis{0};
  const Item& item = items_[at];
  // A shard answers in order: what stands behind it may have been under way until now.
  if (at == foremost()) moved_at_ = now;
  if (item.seq != 0) acknowledged_ = std::max(acknowledged_, item.seq);
  if (!item.is_dropped) this->answer(item, answer, payload);
  const bool is_in_vain = item.waits && answer.type == wire::PsType::kError;
  const std::shared_ptr<Call> failed = is_in_vain ? item.call : nullptr;
  settle(at);
  if (failed) skip_rest_of(*failed);
}

// Of one that waits for others, what has not begun to: it fails, whatever comes of that.
void Session::skip_rest_of(Call& call) {
  for (std::size_t at = next_; at < items_.size();) {
    const Item& item = items_[at];
    if (item.call.get() != &call || !item.waits) {
      ++at;
      continue;
    }
    call.parts()[item.part].is_answered = true;
    ++call.state().answered;
    settle(at);
  }
}

void Session::answer(const Item& item, const wire::PsHeader& header,
                     std::span<const std::byte> payload) {
  Call& call = *item.call;
  call.release(item.part);
  if (header.type == wire::PsType::kError) {
    call.refused(item.part);
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
  // Our next changes would be taken for those that were done, and never be done.
  if (header.b > begun_)
    return fail(ErrorKind::kMismatch,
                str("the server knows ", header.b, " changes of this client, which has sent ",
                    begun_, ": two processes use client number ", options_.hello.client,
                    ", or this one was restored from an image. Connect anew"));
  options_.incarnation = header.a;
  state_ = State::kUp;
  was_welcome_ = true;
}

// The server has seen a gap: everything numbered after `last_done` goes out once more.
void Session::go_back(std::uint64_t last_done) {
  if (last_done < acknowledged_)
    return fail(ErrorKind::kPeerLost,
                str("the server has gone back from change ", acknowledged_, " to ", last_done));
  std::size_t first = next_;
  for (std::size_t at = next_; at-- > 0;)
    if (items_[at].seq > last_done) first = at;
  for (std::size_t at = first; at < next_; ++at) {
    Item& item = items_[at];
    flight_bytes_ -= item.bytes;
    // What is half on the wire goes on; it will be answered with "out of order" again, by a number
    // that nobody waits for.
    item.request = ~std::uint64_t{0};
  }
  take_back_to(first);
}

}  // namespace gradring::ps
