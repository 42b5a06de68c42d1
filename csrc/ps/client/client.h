// Client: the driver of a ClientCore. Makes links to the shards and moves frames. A blocking call
// is driven by the thread that makes it, so nothing is handed over; a thread of its own drives
// asynchronous calls while nobody else does, and looks after idle connections: a server that was
// started again takes a client for lost that does not come back. Callable from any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "base/turn.h"
#include "ps/client/client_core.h"
#include "ps/client/dialer.h"
#include "ps/client/remote_table.h"
#include "ps/protocol/frame_reader.h"
#include "ps/protocol/pause.h"

namespace gradring::ps {

struct ClientOptions {
  std::vector<std::string> servers;  // "host:port", in the servers' order.
  transport::Credentials credentials;
  std::uint32_t client = 0;  // Number of the worker; 2^31 and more: nobody's worker.
  transport::TransportMode mode = transport::TransportMode::kAuto;
  Millis timeout{60000};
  Millis answer_time{15000};  // See SessionOptions.
  std::uint64_t started_bytes = limits::kPsStartedBytes;
};

class Client {
 public:
  // Asks every server how many shards it has. Throws AuthError, Mismatch, or PeerLost if one cannot
  // be reached within the timeout.
  explicit Client(const ClientOptions& options);
  ~Client();

  std::uint32_t shards() const { return core_.shards(); }
  Millis timeout() const { return options_.timeout; }

  // Until the call is done. Throws its failure. A signal handler that raises ends it, too.
  void run(const std::shared_ptr<Call>& call, Millis timeout);
  // Starts a call that goes on by itself; its memory is in use until it is done. Waits while too
  // many are under way, or too much of arrays is theirs (of those that wait for no gate), unless it
  // goes along with another; a hint hardly does. Throws TimedOut after so long without progress on
  // a shard that the first of them waits for, or where it is one of as long a timeout that has made
  // the room by timing out, or what an interrupt raises: nothing has begun then.
  void start(const std::shared_ptr<Call>& call, Millis timeout);
  // Throws its failure, or TimedOut after so long without progress on a shard that it waits for: it
  // goes on.
  void wait(const std::shared_ptr<Call>& call, Millis timeout);
  // Ends a call that was started, if it is not done: its memory is the caller's again, and nobody
  // hears of its failure.
  void abandon(const std::shared_ptr<Call>& call);
  // Until everything that was started is done but for hints, each as in wait(); in a signal
  // handler, inside of another wait of this thread, also but for what waits at gates. Throws the
  // first failure nobody has waited for.
  void flush(Millis timeout);
  // Ends what is under way with Closed and says goodbye.
  void close();
  // What rounding has kept for the rows of this table is nobody's any more, from the next call on.
  void forget_residuals(const std::shared_ptr<RemoteTable>& table);
  bool is_closed() const { return is_closed_.load(std::memory_order_acquire); }

  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  std::uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }

 private:
  struct Connection {
    std::unique_ptr<transport::Link> link;
    FrameReader reader;
    bool is_blocked = false;  // The link takes no more at the moment.
  };

  Client(const ClientOptions& options, FoundShards found);
  void check_usable() const;
  template <typename Prepare>
  void submit_later(const std::shared_ptr<Call>& call, Millis timeout, const Prepare& prepare);
  void submit_or_refuse(const std::shared_ptr<Call>& call, Millis timeout, Time now);
  void post(std::function<void(Time)> task);
  void put_posted(std::function<void(Time)> task);
  void wake() const;
  void wait_done(const std::shared_ptr<Call>& call);
  void interrupt(const std::shared_ptr<Call>& call);
  void forget(const std::shared_ptr<Call>& call);
  void take_done();
  static std::uint64_t room_of(const Call& call);
  bool has_room_for(const Call& call) const;
  std::shared_ptr<Call> find_in_the_way_of(const Call& call);
  void wait_for_room(const Call& call, Millis timeout);
  // What the driver knows of a call that is under way.
  struct Standing {
    bool is_known = false;
    Time progress_at{};
    std::string missing;
  };
  Standing standing_of(const std::shared_ptr<Call>& call);
  void drive_until(const Call& call, std::unique_lock<Turn>& seat);
  bool drive_once();
  void take_posted();
  void connect(std::uint32_t shard, Time now);
  void disconnect(std::uint32_t shard, const std::string& why);
  bool push(std::uint32_t shard, Time now);
  bool pull(std::uint32_t shard);
  void sleep(Time now);
  void run_background();
  bool drive_background();
  void notice_hang_ups();
  bool lacks_connection() const;
  void say_goodbye();

  ClientOptions options_;
  std::uint64_t fork_generation_;
  std::vector<std::string> addresses_;  // Of each shard's server.

  Turn seat_;  // The driver's: guards what follows, up to next_tick_.
  ClientCore core_;
  std::vector<Connection> connections_;
  Pause pause_;
  std::uint64_t finished_seen_ = 0;
  Time next_tick_{};

  std::mutex mutex_;                               // Guards the rest, but for atomics.
  std::condition_variable changed_;                // For callers.
  std::condition_variable has_work_;               // For run_background.
  std::vector<std::function<void(Time)>> posted_;  // For whoever has the seat.
  std::vector<std::shared_ptr<Call>> background_;  // Started, not seen to be done.
  std::uint64_t started_bytes_ = 0;                // Of arrays of those that wait for no gate.
  std::vector<std::shared_ptr<Call>> failed_;      // The first of those nobody has waited for.
  std::uint64_t timed_out_ = 0;                    // Of those started, but for hints; and
  Millis timed_out_after_{0};                      // the last one's timeout.
  bool is_stopping_ = false;
  std::thread thread_;
  transport::Fd wake_;                   // Written to end a driver's sleep.
  Dialer dialer_;                        // The driver's too: under seat_.
  std::atomic<bool> has_posted_{false};  // A hint, set under mutex_.
  std::atomic<bool> is_closed_{false};
  std::atomic<std::uint64_t> bytes_sent_{0};  // Statistics: relaxed.
  std::atomic<std::uint64_t> bytes_received_{0};
};

}  // namespace gradring::ps
