// PointToPoint: how far messages have come, in bytes and in words.
#include <algorithm>
#include <memory>

#include "collectives/communicator/point_to_point.h"
#include "wire/op_header.h"

namespace gradring::collectives {

// Of a transfer's payload. Under the seat.
std::uint64_t PointToPoint::moved(const Peer& peer, const Transfer& transfer) {
  if (transfer.is_recv) return peer.target.get() == &transfer ? peer.received : 0;
  const bool is_next = !peer.sends.empty() && peer.sends.front().get() == &transfer;
  return is_next ? peer.sent - std::min<std::uint64_t>(peer.sent, wire::kOpHeaderBytes) : 0;
}

// What grows while a transfer moves on, or what comes before it: of its peer, in its direction; of
// a recv from anyone of all peers.
std::uint64_t PointToPoint::bytes_towards(const Transfer& transfer) const {
  const auto pulled = [](const Peer& peer) {
    return peer.pulled_bytes.load(std::memory_order_relaxed);
  };
  if (transfer.asked_peer != kAnyPeer) {
    const Peer& peer = peers_[static_cast<std::size_t>(transfer.asked_peer)];
    return transfer.is_recv ? pulled(peer) : peer.pushed_bytes.load(std::memory_order_relaxed);
  }
  std::uint64_t bytes = 0;
  for (const Peer& peer : peers_) bytes += pulled(peer);
  return bytes;
}

void PointToPoint::note_pushed(Peer& peer, std::size_t bytes) {
  peer.pushed_bytes.fetch_add(bytes, std::memory_order_relaxed);
  pushed_bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

void PointToPoint::note_pulled(Peer& peer, std::size_t bytes) {
  peer.pulled_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

// One that is under way: an error of the background thread is told in its name.
std::shared_ptr<const Transfer> PointToPoint::oldest() const {
  std::shared_ptr<const Transfer> found;
  const auto look_at = [&](const std::shared_ptr<Transfer>& transfer) {
    if (transfer && (!found || transfer->nth < found->nth)) found = transfer;
  };
  for (const Peer& peer : peers_) {
    look_at(peer.target);
    if (!peer.sends.empty()) look_at(peer.sends.front());
    if (!peer.recvs.empty()) look_at(peer.recvs.front());
  }
  if (!any_.empty()) look_at(any_.front());
  if (found) return found;
  const auto none = std::make_shared<Transfer>();
  none->is_recv = true;
  none->call.op = OpKind::kRecv;
  return none;
}

// What can be told while another thread has the seat.
std::string PointToPoint::describe_moved(const Transfer& transfer) const {
  const std::lock_guard lock(mutex_);
  if (is_done(transfer) || transfer.record == nullptr) return "";
  return str("; ", transfer.is_recv ? transfer.record->received() : transfer.record->sent(), " of ",
             transfer.bytes, " bytes ", transfer.is_recv ? "received" : "sent", ", tag ",
             transfer.tag);
}

std::string PointToPoint::describe_wait(const Transfer& transfer) const {
  if (transfer.peer < 0)
    return transfer.is_recv ? str("; from any rank, tag ", transfer.tag) : std::string();
  const Peer& peer = peers_[static_cast<std::size_t>(transfer.peer)];
  const Rank member = group_->members[static_cast<std::size_t>(transfer.peer)];
  std::string text = str("; ", moved(peer, transfer), " of ", transfer.bytes, " bytes ",
                         transfer.is_recv ? "received from " : "sent to ", world_->describe(member),
                         ", tag ", transfer.tag);
  if (transfer.is_recv && is_stuck(peer))
    text +=
        str("; its next message has tag ", peer.arriving.tag, ", nobody has asked for that, and ",
            peer.unexpected_bytes, " bytes of earlier ones wait already");
  return text;
}

}  // namespace gradring::collectives
