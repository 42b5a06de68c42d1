#include "collectives/communicator/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/config.h"
#include "base/error.h"
#include "base/threads.h"
#include "collectives/communicator/communicator.h"
#include "transport/links/interrupts.h"

namespace gradring::collectives {
namespace {

constexpr std::uint64_t kMessageTurnBytes = 512 * 1024;
constexpr std::uint8_t kLane = 1;

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<transport::World> world,
                           std::shared_ptr<transport::Group> group, Rank rank,
                           std::shared_ptr<Logbook> logbook)
    : world_(world),
      group_(group),
      rank_(rank),
      logbook_(std::move(logbook)),
      mesh_(world, group, kLane),
      peers_(group->members.size()) {}

void PointToPoint::stop() {
  std::thread thread;  // Of several that close, one takes it.
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    thread = std::move(thread_);
    changed_.notify_all();
  }
  group_->wake();
  if (thread.joinable()) thread.join();
  const std::lock_guard seat(drive_);
  fail_all(group_->failure());
  mesh_.hang_up();
}

void PointToPoint::start(const std::shared_ptr<Transfer>& transfer, bool in_background) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) {  // Since the caller looked. Nobody takes it up any more.
      transfer->failure = ended_;
      transfer->is_done.store(true, std::memory_order_release);
      return;
    }
    // First, as it may fail: nobody would see through what is posted already.
    if (in_background && !thread_.joinable() && !is_stopping_)
      thread_ = start_thread("messages", [this] { run_background(); });
    posted_.push_back(transfer);
    transfer->asked_peer = transfer->peer;
    transfer->record = logbook_->messages.begin(transfer->call, 0);
    if (transfer->record != nullptr) {
      transfer->record->stamp();
      const Rank peer = transfer->peer == kAnyPeer
                            ? kAnyPeer
                            : group_->members[static_cast<std::size_t>(transfer->peer)];
      transfer->record->set_message(peer, transfer->tag);
      transfer->record->expect(transfer->is_recv ? 0 : transfer->bytes,
                               transfer->is_recv ? transfer->bytes : 0);
    }
    transfer->is_given = in_background && !transfer->is_recv;
    if (transfer->is_given) ++given_;
    if (in_background) ++background_;
    changed_.notify_all();
  }
  group_->wake();  // Whoever drives may be asleep and has to look at the new transfer.
}

void PointToPoint::wait(const std::shared_ptr<Transfer>& transfer, Millis timeout,
                        bool interruptible) {
  transport::Idle idle(*group_, timeout, interruptible);
  std::uint64_t seen = bytes_towards(*transfer);
  // Of this one: whatever else goes on, its time does not begin anew.
  const auto has_moved = [&] {
    const std::uint64_t bytes = bytes_towards(*transfer);
    return bytes != std::exchange(seen, bytes);
  };
  while (!is_done(*transfer)) {
    std::unique_lock seat(drive_, std::try_to_lock);
    try {
      if (!seat.owns_lock()) {
        idle.note_wait();
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, Millis{5}, [&] { return is_done(*transfer); });
        if (is_done(*transfer)) break;
        lock.unlock();
        if (has_moved()) idle.reset();
        idle.check();
        if (interruptible) transport::run_interrupt_check();
        continue;
      }
      mesh_.set_timeout(timeout);
      while (!is_done(*transfer)) {
        const bool moves_any = drive_once();
        if (has_moved()) {
          idle.reset();
        } else if (!is_done(*transfer) && moves_any) {
          idle.note_other_progress();
        } else if (!is_done(*transfer)) {
          collect_interests();
          idle.on_links(interests_);
        }
      }
    } catch (...) {
      const Failure failure = give_up(*transfer, std::current_exception(), timeout, seat);
      group_->note_told();
      failure.raise();
    }
    seat.unlock();
    const std::lock_guard lock(mutex_);
    changed_.notify_all();  // The seat is free.
  }
  const std::lock_guard lock(mutex_);
  if (!transfer->failure) return;
  if (group_->is_failed()) group_->note_told();
  transfer->failure.raise();
}

// Closes the communicator. With the group failed, whoever has the seat comes out of its wait and
// gives it up.
Failure PointToPoint::give_up(const Transfer& transfer, const std::exception_ptr& error,
                              Millis timeout, std::unique_lock<Turn>& seat) {
  const std::string progress =
      seat.owns_lock() ? describe_wait(transfer) : describe_moved(transfer);
  const Failure failure =
      find_cause(*world_, *group_, describe(transfer.call), 0, error, progress, timeout);
  group_->fail(failure);
  if (!seat.owns_lock()) seat.lock();
  fail_all(failure);
  return logbook_->noted(failure);
}

void PointToPoint::run_background() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_stopping_ || background_ > 0; });
      if (is_stopping_) return;
    }
    std::unique_lock seat(drive_, limits::kSleepSlice);
    if (!seat.owns_lock()) continue;
    transport::Idle idle(*group_, kForGood,
                         false);  // Whoever waits for a transfer brings the deadline.
    mesh_.set_timeout(kForGood);
    try {
      while (true) {
        const bool moved = drive_once();
        if (!has_active()) break;
        if (moved) {
          idle.reset();
          continue;
        }
        collect_interests();
        idle.on_links(interests_);
      }
      const std::lock_guard lock(mutex_);
      if (posted_.empty()) background_ = 0;  // Else one has just been started.
    } catch (...) {
      give_up(*oldest(), std::current_exception(), kForGood, seat);
      return;
    }
  }
}

// Moves newly posted transfers to their peers. Under the seat.
void PointToPoint::take_posted() {
  std::vector<std::shared_ptr<Transfer>> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  auto next = posted.begin();
  try {
    while (next != posted.end()) take(*next++);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    posted_.insert(posted_.begin(), next, posted.end());
    throw;
  }
}

void PointToPoint::take(const std::shared_ptr<Transfer>& transfer) {
  transfer->nth = ++posted_count_;
  if (transfer->is_recv)
    post_recv(transfer);
  else if (transfer->peer == rank_)
    send_to_self(transfer);
  else
    peers_[static_cast<std::size_t>(transfer->peer)].sends.push_back(transfer);
}

bool PointToPoint::drive_once() {
  take_posted();
  bool moved = false;
  for (Rank rank = 0; rank < static_cast<Rank>(peers_.size()); ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (rank == rank_) continue;
    if (!peer.sends.empty()) moved |= push(rank, peer);
    // Existing links are read even without a recv, so that a peer that sends first can finish.
    if (!peer.recvs.empty() || !any_.empty() || peer.target || mesh_.existing(rank) != nullptr)
      moved |= pull(rank, peer);
  }
  if (!any_.empty()) check_not_alone();
  return moved;
}

// Whoever waits for a message from anyone waits in vain when everybody has left.
void PointToPoint::check_not_alone() const {
  Rank closed = -1;
  for (const Peer& peer : peers_) {
    if (rank_of(peer) == rank_) continue;
    if (!peer.is_closed) return;
    closed = rank_of(peer);
  }
  if (closed >= 0) throw LinkClosed{closed, true, 0, any_.front()->bytes};
}

bool PointToPoint::has_left(Rank rank) const {
  return group_->left(group_->members[static_cast<std::size_t>(rank)]).has_value();
}

bool PointToPoint::push(Rank rank, Peer& peer) {
  transport::Link* link = mesh_.link(rank);
  if (link == nullptr) return false;
  Transfer& transfer = *peer.sends.front();
  if (peer.sent == 0)
    peer.out_header =
        wire::encode({transfer.call, peer.messages_out, transfer.tag, transfer.bytes});
  const std::size_t of_header = std::min<std::uint64_t>(peer.sent, wire::kOpHeaderBytes);
  const std::uint64_t of_body = peer.sent - of_header;
  const std::span<const std::byte> head = std::span(peer.out_header).subspan(of_header);
  const std::span<const std::byte> body(transfer.data + of_body,
                                        std::min(transfer.bytes - of_body, kMessageTurnBytes));
  const transport::Io io = link->send_some(head, body);
  // Where the other end has left, a full connection stays as it is.
  if (io.closed || (io.bytes == 0 && (peer.is_closed || has_left(rank))))
    throw LinkClosed{rank, false, of_body, transfer.bytes};
  peer.sent += io.bytes;
  note_pushed(peer, io.bytes);
  if (transfer.record != nullptr && peer.sent >= wire::kOpHeaderBytes)
    transfer.record->set_moved(peer.sent - wire::kOpHeaderBytes, 0);
  if (peer.sent == wire::kOpHeaderBytes + transfer.bytes) {
    finish(transfer);
    peer.sends.pop_front();
    peer.sent = 0;
    ++peer.messages_out;
  }
  return io.bytes > 0;
}

bool PointToPoint::pull(Rank rank, Peer& peer) {
  if (peer.is_closed) {
    if (peer.recvs.empty() && !peer.target) return false;
    const Transfer& waiting = peer.target ? *peer.target : *peer.recvs.front();
    throw LinkClosed{rank, true, peer.received, waiting.bytes};
  }
  transport::Link* link = link_to_pull(rank, peer);
  if (link == nullptr) return false;
  if (peer.in_header_bytes < wire::kOpHeaderBytes) return pull_header(rank, peer, *link);
  if (!peer.target && peer.kept == nullptr)
    return false;  // Too far ahead: it waits until somebody asks for this message.
  std::byte* data = peer.target ? peer.target->data : peer.kept->data.data();
  const std::uint64_t left = peer.arriving.bytes - peer.received;
  const transport::Io io =
      link->recv_some({}, std::span(data + peer.received, std::min(left, kMessageTurnBytes)));
  peer.received += io.bytes;
  note_pulled(peer, io.bytes);
  if (peer.target && peer.target->record != nullptr)
    peer.target->record->set_moved(0, peer.received);
  if (peer.received == peer.arriving.bytes)
    finish_payload(peer);
  else if (io.closed)
    peer.is_closed = true;
  return io.bytes > 0;
}

transport::Link* PointToPoint::link_to_pull(Rank rank, Peer& peer) {
  if (!peer.recvs.empty() || peer.target) return mesh_.link(rank);
  // Asked only for a recv from anyone, and others may still send.
  if (has_left(rank) && mesh_.accepted(rank) == nullptr) {
    peer.is_closed = true;
    return nullptr;
  }
  if (peer.asked_again != Time{} && Clock::now() < peer.asked_again) return nullptr;
  try {
    return mesh_.link(rank);
  } catch (const PeerLost&) {
    if (group_->is_failed()) throw;
    // It has closed this communicator or died: the monitor will say which.
    peer.asked_again = Clock::now() + limits::kSleepSlice;
    return nullptr;
  }
}

bool PointToPoint::pull_header(Rank rank, Peer& peer, transport::Link& link) {
  const transport::Io io =
      link.recv_some(std::span(peer.in_header).subspan(peer.in_header_bytes), {});
  peer.in_header_bytes += io.bytes;
  note_pulled(peer, io.bytes);
  if (io.closed) peer.is_closed = true;
  if (peer.in_header_bytes < wire::kOpHeaderBytes) return io.bytes > 0;
  peer.arriving = wire::decode_op_header(peer.in_header);
  if (peer.arriving.call.op != OpKind::kSend)
    throw ProtocolError(str("rank ", rank, " sent a ", name(peer.arriving.call.op),
                            " where a message was expected"));
  peer.received = 0;
  match_arriving(peer);
  return true;
}

void PointToPoint::finish(Transfer& transfer, const Failure& failure) {
  // Here, whoever waits: when it is done it is where it was asked for. Once: under the seat.
  if (!failure && transfer.unpacked_to != nullptr) transfer.unpacked_to->unpack();
  const std::lock_guard lock(mutex_);
  if (is_done(transfer)) return;
  transfer.failure = failure;
  if (transfer.is_given) --given_;
  if (transfer.record != nullptr && !failure)
    transfer.record->set_moved(transfer.is_recv ? 0 : transfer.bytes,
                               transfer.is_recv ? transfer.bytes : 0);
  logbook_->messages.end(transfer.record,
                         failure ? OperationState::kFailed : OperationState::kFinished);
  transfer.is_done.store(true, std::memory_order_release);
  changed_.notify_all();
}

// Everything there is, and whatever is started from now on.
void PointToPoint::fail_all(const Failure& failure) {
  std::vector<std::shared_ptr<Transfer>> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
    if (!ended_) ended_ = failure;
  }
  for (const auto& transfer : posted) finish(*transfer, failure);
  for (Peer& peer : peers_) {
    for (const auto& transfer : peer.sends) finish(*transfer, failure);
    for (const auto& transfer : peer.recvs) finish(*transfer, failure);
    if (peer.target) finish(*peer.target, failure);
    peer.sends.clear();
    peer.recvs.clear();
    peer.target.reset();
  }
  for (const auto& transfer : any_) finish(*transfer, failure);
  any_.clear();
}

void PointToPoint::collect_interests() {
  interests_.clear();
  for (Rank rank = 0; rank < static_cast<Rank>(peers_.size()); ++rank) {
    const Peer& peer = peers_[static_cast<std::size_t>(rank)];
    transport::Link* link = mesh_.existing(rank);
    if (link == nullptr || peer.is_closed) continue;
    const bool can_take =
        peer.in_header_bytes < wire::kOpHeaderBytes || peer.target || peer.kept != nullptr;
    if (can_take || !peer.sends.empty())
      interests_.push_back({link, can_take, !peer.sends.empty()});
  }
}

bool PointToPoint::has_active() const {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return false;
    if (!posted_.empty()) return true;
  }
  if (!any_.empty()) return true;
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return !peer.sends.empty() || !peer.recvs.empty() || peer.target != nullptr;
  });
}

}  // namespace gradring::collectives
