// PointToPoint's matching: which recv a message goes to, and where it waits until one is posted.
#include <algorithm>
#include <cstring>

#include "base/config.h"
#include "base/error.h"
#include "collectives/point_to_point.h"

namespace gradring::collectives {

void PointToPoint::post_recv(const std::shared_ptr<Transfer>& transfer) {
  const bool from_any = transfer->peer == kAnyPeer;
  const auto first = from_any ? peers_.begin() : peers_.begin() + transfer->peer;
  const auto last = from_any ? peers_.end() : first + 1;
  for (auto peer = first; peer != last; ++peer)
    if (match_unexpected(*peer, transfer)) return;
  (from_any ? any_ : first->recvs).push_back(transfer);
  for (auto peer = first; peer != last; ++peer)
    if (is_stuck(*peer)) match_arriving(*peer);
}

// A message's header has come, and there was no place for its payload.
bool PointToPoint::is_stuck(const Peer& peer) const {
  return peer.in_header_bytes == wire::kOpHeaderBytes && !peer.target && peer.kept == nullptr;
}

// The recv that was posted first of those that take a message with this tag from `rank`, off its
// list; or null.
std::shared_ptr<Transfer> PointToPoint::claim(Rank rank, std::int32_t tag) {
  auto& recvs = peers_[static_cast<std::size_t>(rank)].recvs;
  const auto has_tag = [&](const auto& transfer) { return transfer->tag == tag; };
  const auto own = std::find_if(recvs.begin(), recvs.end(), has_tag);
  const auto any = std::find_if(any_.begin(), any_.end(), has_tag);
  if (own == recvs.end() && any == any_.end()) return nullptr;
  const bool is_own = any == any_.end() || (own != recvs.end() && (*own)->nth < (*any)->nth);
  auto& list = is_own ? recvs : any_;
  const auto found = is_own ? own : any;
  std::shared_ptr<Transfer> transfer = std::move(*found);
  list.erase(found);
  transfer->peer = rank;
  return transfer;
}

// Decides where the payload of the message whose header has come goes.
void PointToPoint::match_arriving(Peer& peer) {
  if (auto wanted = claim(rank_of(peer), peer.arriving.tag)) {
    peer.target = std::move(wanted);
    check_fit(peer.arriving, *peer.target);
  } else if (peer.arriving.bytes <= limits::kUnexpectedBytes - peer.unexpected_bytes) {
    peer.unexpected_bytes += peer.arriving.bytes;
    peer.unexpected.push_back({peer.arriving, std::vector<std::byte>(peer.arriving.bytes), false});
    peer.kept = &peer.unexpected.back();
  } else {
    return;
  }
  if (peer.arriving.bytes == 0) finish_payload(peer);
}

void PointToPoint::finish_payload(Peer& peer) {
  peer.in_header_bytes = 0;
  if (peer.target) {
    finish(*peer.target);
    peer.target.reset();
    return;
  }
  peer.kept->is_complete = true;
  peer.kept = nullptr;
  match_posted(peer);
}

// A recv that was posted while its message was arriving into our own memory.
void PointToPoint::match_posted(Peer& peer) {
  for (auto message = peer.unexpected.begin(); message != peer.unexpected.end();) {
    const auto current = message++;
    if (!current->is_complete) break;  // The last one.
    const auto transfer = claim(rank_of(peer), current->header.tag);
    if (!transfer) continue;
    deliver(*current, *transfer);
    peer.unexpected_bytes -= current->data.size();
    peer.unexpected.erase(current);
  }
}

bool PointToPoint::match_unexpected(Peer& peer, const std::shared_ptr<Transfer>& transfer) {
  const auto message =
      std::find_if(peer.unexpected.begin(), peer.unexpected.end(),
                   [&](const Message& kept) { return kept.header.tag == transfer->tag; });
  // Only the first with this tag counts, even if it is still arriving: messages with one tag keep
  // their order.
  if (message == peer.unexpected.end() || !message->is_complete) return false;
  transfer->peer = rank_of(peer);
  deliver(*message, *transfer);
  peer.unexpected_bytes -= message->data.size();
  peer.unexpected.erase(message);
  if (is_stuck(peer)) match_arriving(peer);
  return true;
}

// What sender and receiver must agree on.
void PointToPoint::check_fit(const wire::OpHeader& theirs, const Transfer& mine) const {
  if (theirs.bytes == mine.bytes && theirs.call.dtype == mine.call.dtype) return;
  const auto of = [](const Call& call) { return str(name(call.dtype), " x ", call.count); };
  throw Mismatch(str("recv from rank ", group_->members[static_cast<std::size_t>(mine.peer)],
                     " with tag ", mine.tag, ": it sends ", of(theirs.call), ", rank ",
                     world_->rank(), " expects ", of(mine.call)));
}

void PointToPoint::deliver(Message& message, Transfer& transfer) {
  check_fit(message.header, transfer);
  if (transfer.bytes > 0) std::memcpy(transfer.data, message.data.data(), transfer.bytes);
  finish(transfer);
}

void PointToPoint::send_to_self(const std::shared_ptr<Transfer>& transfer) {
  Peer& self = peers_[static_cast<std::size_t>(rank_)];
  Message message{{transfer->call, self.messages_out++, transfer->tag, transfer->bytes}, {}, true};
  message.data.assign(transfer->data, transfer->data + transfer->bytes);
  self.unexpected_bytes += message.data.size();
  self.unexpected.push_back(std::move(message));
  finish(*transfer);
  match_posted(self);
}

}  // namespace gradring::collectives
