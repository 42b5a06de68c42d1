// PointToPoint's matching: which recv a message goes to, and where it waits until one is posted.
#include <algorithm>

#include "base/config.h"
#include "base/copy_bytes.h"
#include "base/error.h"
#include "collectives/communicator/point_to_point.h"

namespace gradring::collectives {
namespace {

// So that empty messages, too, are limited in number: the list's node, the header, the allocations.
constexpr std::size_t kMessageBytes = 256;

std::size_t cost_of(std::uint64_t bytes) {
  return static_cast<std::size_t>(bytes) + kMessageBytes;
}

}  // namespace

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
  const std::size_t room =
      limits::kUnexpectedBytes - std::min(limits::kUnexpectedBytes, peer.unexpected_bytes);
  const bool has_room = peer.arriving.bytes <= room &&
                        (peer.unexpected_bytes == 0 || cost_of(peer.arriving.bytes) <= room);
  if (auto wanted = claim(rank_of(peer), peer.arriving.tag)) {
    peer.target = std::move(wanted);
    check_fit(peer.arriving, *peer.target);
  } else if (has_room) {
    keep(peer, {peer.arriving, std::vector<std::byte>(peer.arriving.bytes), false});
    peer.kept = &peer.unexpected[peer.arriving.tag].back();
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
  match_complete(peer, peer.arriving.tag);
}

// A recv may have been posted while the last message with this tag was arriving into our own
// memory. Earlier ones were offered when they were complete, and to every recv since.
void PointToPoint::match_complete(Peer& peer, std::int32_t tag) {
  const auto transfer = claim(rank_of(peer), tag);
  if (transfer) deliver(peer, *transfer);
}

bool PointToPoint::match_unexpected(Peer& peer, const std::shared_ptr<Transfer>& transfer) {
  const auto found = peer.unexpected.find(transfer->tag);
  // Only the first with this tag counts, even if it is still arriving: messages with one tag keep
  // their order.
  if (found == peer.unexpected.end() || !found->second.front().is_complete) return false;
  transfer->peer = rank_of(peer);
  deliver(peer, *transfer);
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

void PointToPoint::keep(Peer& peer, Message message) {
  peer.unexpected_bytes += cost_of(message.data.size());
  peer.unexpected[message.header.tag].push_back(std::move(message));
}

// The first message with the transfer's tag, which is complete.
void PointToPoint::deliver(Peer& peer, Transfer& transfer) {
  const auto found = peer.unexpected.find(transfer.tag);
  const Message& message = found->second.front();
  try {
    check_fit(message.header, transfer);
  } catch (const Error& error) {
    finish(transfer, Failure::from(error));  // It is on no list any more.
    throw;
  }
  copy_bytes(transfer.data, message.data.data(), transfer.bytes);
  finish(transfer);
  peer.unexpected_bytes -= cost_of(message.data.size());
  found->second.pop_front();
  if (found->second.empty()) peer.unexpected.erase(found);
}

void PointToPoint::send_to_self(const std::shared_ptr<Transfer>& transfer) {
  Peer& self = peers_[static_cast<std::size_t>(rank_)];
  Message message{{transfer->call, self.messages_out++, transfer->tag, transfer->bytes}, {}, true};
  message.data.assign(transfer->data, transfer->data + transfer->bytes);
  keep(self, std::move(message));
  finish(*transfer);
  match_complete(self, transfer->tag);
}

}  // namespace gradring::collectives
