// send and recv with tags, on links of their own so that a rank waiting in recv does not hold up
// collectives. Messages between two ranks with one tag keep their order. Callable from any thread;
// one thread at a time drives the links for everybody, the others sleep until their message is
// through or the driver's seat is free.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/call.h"
#include "base/strided.h"
#include "base/turn.h"
#include "collectives/records/flight_recorder.h"
#include "transport/membership/idle.h"
#include "transport/mesh.h"
#include "wire/op_header.h"

namespace gradring::collectives {

// The peer of a recv that takes a message from whoever sends one.
inline constexpr Rank kAnyPeer = -1;

// One message under way. `send` and `recv` of a communicator; memory is the caller's until the
// transfer is done.
struct Transfer {
  bool is_recv = false;
  Rank peer = kAnyPeer;  // Of a recv from anyone: the sender, once a message is matched.
  std::int32_t tag = 0;
  Call call;  // kSend or kRecv, dtype and count.
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  const Packed* unpacked_to = nullptr;  // Of a recv whose `data` stands for something else.
  std::uint64_t nth = 0;                // Order of posting. Under the driver's seat.
  Rank asked_peer = kAnyPeer;           // `peer` as it was when it started.

  // Guarded by PointToPoint::mutex_.
  OperationRing::Slot* record = nullptr;
  bool is_given = false;  // A send in the background.
  Failure failure;
  // Set (release) last, when `data` is not touched any more: asked without the lock, and when the
  // communicator is gone.
  std::atomic<bool> is_done{false};
};

class PointToPoint {
 public:
  PointToPoint(std::shared_ptr<transport::World> world, std::shared_ptr<transport::Group> group,
               Rank rank, std::shared_ptr<Logbook> logbook);
  // Starts a transfer; it advances while any thread waits or, if `in_background`, on a thread of
  // its own.
  void start(const std::shared_ptr<Transfer>& transfer, bool in_background);
  // Until it is done. A failure or a deadline closes the communicator. Throws any public error.
  void wait(const std::shared_ptr<Transfer>& transfer, Millis timeout, bool interruptible = true);
  static bool is_done(const Transfer& transfer) {
    return transfer.is_done.load(std::memory_order_acquire);
  }
  // Whether this thread has the driver's seat: a signal handler has interrupted its wait.
  bool is_driven_here() const { return drive_.is_held_here(); }
  // Before a communicator is closed well: sends in the background that are under way still go, for
  // as long as their receivers take them; a second without progress, or ten in all.
  void linger();
  // Before the communicator goes, when its group has failed: ends all transfers and the background
  // thread.
  void stop();

 private:
  struct Message {  // Came before anybody asked for it.
    wire::OpHeader header;
    std::vector<std::byte> data;
    bool is_complete = false;
  };
  struct Peer {
    std::deque<std::shared_ptr<Transfer>> sends;
    std::uint64_t sent = 0;  // Bytes of sends.front(), header included.
    wire::OpHeaderBytes out_header{};
    std::uint64_t messages_out = 0;

    std::list<std::shared_ptr<Transfer>> recvs;             // Posted, not matched yet, in order.
    std::map<std::int32_t, std::list<Message>> unexpected;  // By tag, in order.
    std::size_t unexpected_bytes = 0;                       // With what each takes besides.
    wire::OpHeaderBytes in_header{};
    std::size_t in_header_bytes = 0;
    wire::OpHeader arriving;           // Decoded in_header.
    std::shared_ptr<Transfer> target;  // Where the payload goes: a transfer ...
    Message* kept = nullptr;           // ... or a message in `unexpected`.
    std::uint64_t received = 0;        // Bytes of the payload.
    bool is_closed = false;
    Time asked_again{};  // Before that a recv from anyone does without it.
    // All bytes, of headers too. Counted under the seat, read by whoever waits: relaxed.
    std::atomic<std::uint64_t> pushed_bytes{0};
    std::atomic<std::uint64_t> pulled_bytes{0};
  };

  void take_posted();
  void take(const std::shared_ptr<Transfer>& transfer);
  bool drive_once();
  bool push(Rank rank, Peer& peer);
  bool pull(Rank rank, Peer& peer);
  transport::Link* link_to_pull(Rank rank, Peer& peer);
  bool pull_header(Rank rank, Peer& peer, transport::Link& link);
  void post_recv(const std::shared_ptr<Transfer>& transfer);
  std::shared_ptr<Transfer> claim(Rank rank, std::int32_t tag);
  void match_arriving(Peer& peer);
  bool match_unexpected(Peer& peer, const std::shared_ptr<Transfer>& transfer);
  void match_complete(Peer& peer, std::int32_t tag);
  void finish_payload(Peer& peer);
  void send_to_self(const std::shared_ptr<Transfer>& transfer);
  bool is_stuck(const Peer& peer) const;
  void check_not_alone() const;
  bool has_left(Rank rank) const;
  Rank rank_of(const Peer& peer) const { return static_cast<Rank>(&peer - peers_.data()); }
  void check_fit(const wire::OpHeader& theirs, const Transfer& mine) const;
  static void keep(Peer& peer, Message message);
  void deliver(Peer& peer, Transfer& transfer);
  void finish(Transfer& transfer, const Failure& failure = {});
  void fail_all(const Failure& failure);
  Failure give_up(const Transfer& transfer, const std::exception_ptr& error, Millis timeout,
                  std::unique_lock<Turn>& seat);
  std::shared_ptr<const Transfer> oldest() const;
  static std::uint64_t moved(const Peer& peer, const Transfer& transfer);
  std::string describe_moved(const Transfer& transfer) const;
  std::string describe_wait(const Transfer& transfer) const;
  void collect_interests();
  bool has_active() const;
  std::uint64_t bytes_towards(const Transfer& transfer) const;
  void note_pushed(Peer& peer, std::size_t bytes);
  static void note_pulled(Peer& peer, std::size_t bytes);
  bool linger_a_moment();
  void run_background();

  std::shared_ptr<transport::World> world_;
  std::shared_ptr<transport::Group> group_;
  Rank rank_;
  std::shared_ptr<Logbook> logbook_;  // Its ring of messages is written under mutex_.

  Turn drive_;  // The driver's seat: guards mesh_, peers_, any_, posted_count_, interests_.
  transport::Mesh mesh_;
  std::vector<Peer> peers_;
  std::list<std::shared_ptr<Transfer>> any_;  // Recvs from anyone, not matched yet, in order.
  std::uint64_t posted_count_ = 0;
  std::vector<transport::Interest> interests_;

  std::atomic<std::uint64_t> pushed_bytes_{0};  // To all peers.

  mutable std::mutex mutex_;  // Guards posted_, flags of transfers and the background thread's.
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Transfer>> posted_;
  Failure ended_;               // Why none is taken up any more.
  std::size_t given_ = 0;       // Sends in the background that are not done.
  std::size_t background_ = 0;  // Transfers that the background thread has to see through.
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace gradring::collectives
