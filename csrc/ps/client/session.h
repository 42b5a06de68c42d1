// Session: a client's dealings with one shard over connections that come and go. Numbers requests,
// keeps what is not acknowledged and sends it again, matches answers to requests, and bounds what
// is under way. Sans-I/O: it is told of connections, frames and the time. Owned by the ClientCore.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "ps/client/call.h"
#include "ps/protocol/payloads.h"

namespace gradring::ps {

struct SessionOptions {
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;
  std::string address;            // For errors: "shard 1 (10.0.0.3:4711)".
  std::uint64_t incarnation = 0;  // The server's, if it is known; 0: not.
  Hello hello;
  Millis answer_time{15000};  // Without an answer for so long a connection is made anew.
  std::uint64_t flight_bytes = limits::kPsFlightBytes;  // Not more than a shard holds.
};

// Bytes to send, in this order.
struct Output {
  std::array<std::span<const std::byte>, 3> spans;
  bool is_empty() const { return spans[0].empty() && spans[1].empty() && spans[2].empty(); }
};

class Session {
 public:
  explicit Session(const SessionOptions& options) : options_(options) {}

  // Of the last request that changes something.
  std::uint64_t last_seq() const { return last_seq_; }
  // Gives a part its turn, and a number if it changes something.
  void add(const std::shared_ptr<Call>& call, std::size_t part);
  // The inverse, of a call whose parts were the last that were added.
  void take_back(const Call& call);
  // Nobody waits for this call any more and its memory goes: what is numbered is replaced by
  // requests that do nothing, so that the numbers stay without a gap. Needs no memory.
  void drop(const Call& call);
  bool has_work() const { return !items_.empty(); }
  bool is_awaited(std::uint64_t request) const;

  // Whether a new connection should be made now: for work, or so that a shard that knows this
  // client does not take it for lost while it computes.
  bool wants_connection(Time now) const;
  // One is being made, and no other until then.
  void connecting(Time until) { next_try_ = until; }
  void connected(Time now);
  void disconnected(const std::string& why, Time now);
  bool is_connected() const { return state_ != State::kDown; }
  bool was_welcome() const { return was_welcome_; }
  bool is_wanted() const { return !failure_ && (has_work() || was_welcome_); }
  // There will be no connection, ever.
  void fail(ErrorKind kind, const std::string& text);
  // The connection is of no use any more (its stream is broken off): close it, then say
  // disconnected().
  bool wants_hang_up() const { return wants_hang_up_; }
  // It will never work again: the client was replaced, the server lost its state, ...
  const Failure& failure() const { return failure_; }
  const std::string& trouble() const { return trouble_; }  // Why there is no connection.
  const std::string& address() const { return options_.address; }

  // What to send next. The spans are valid until sent() or drop().
  Output output(Time now);
  void sent(std::size_t bytes, Time now);

  // Where an answer's payload may go; empty: anywhere.
  std::span<std::byte> destination(const wire::PsHeader& answer);
  // Throws ProtocolError: close the connection.
  void receive(const wire::PsHeader& answer, std::span<const std::byte> payload, Time now);
  // Bytes of a long answer came. A welcome is none, also in pieces.
  void moved(Time now) {
    if (state_ == State::kUp) progress_at_ = moved_at_ = now;
  }

  Time progress_at() const { return progress_at_; }
  void tick(Time now);
  Time next_tick() const;
  std::uint64_t acknowledged() const { return acknowledged_; }

 private:
  enum class State : std::uint8_t { kDown, kGreeting, kUp };
  struct Item {
    std::shared_ptr<Call> call;
    std::size_t part = 0;
    bool is_dropped = false;    // Of the call only its tail is of use.
    bool waits = false;         // For other workers, or a disk: see may_wait().
    std::uint64_t seq = 0;      // 0: not numbered.
    std::uint64_t after = 0;    // The last number given out before it.
    std::uint64_t request = 0;  // Of the latest try; 0: none yet.
    std::uint64_t bytes = 0;    // Of the latest try.
    Time sent_at{};
  };
  struct Abandoned {
    std::uint64_t request = 0;
    std::uint64_t bytes = 0;
  };

  void begin_hello();
  void end_output();
  void begin(Item& item);
  void begin_next(Time now);
  void take_back_to(std::size_t at);
  static bool is_urgent(const Item& item);
  bool take_urgent();
  bool take_other();
  void skip_rest_of(Call& call);
  bool may_be_stuck() const;
  bool has_room_for(const Item& item) const;
  std::size_t find(std::uint64_t request) const;
  std::size_t foremost() const;
  void answer(const Item& item, const wire::PsHeader& header, std::span<const std::byte> payload);
  void take_welcome(const wire::PsHeader& header, std::span<const std::byte> payload);
  void go_back(std::uint64_t last_done);
  void settle(std::size_t at);
  Time answer_due() const;

  SessionOptions options_;
  State state_ = State::kDown;
  Failure failure_;
  std::string trouble_ = "it was never reached";
  Time next_try_{};
  Millis backoff_{0};
  Time progress_at_{};
  Time moved_at_{};
  Time greeted_at_{};
  bool wants_hang_up_ = false;
  bool was_welcome_ = false;

  std::deque<Item> items_;  // In the order of calls; those before next_ are under way.
  std::size_t next_ = 0;
  std::size_t urgent_ = 0;   // Of items_: those that take_urgent() is for.
  std::size_t waits_ = 0;    // Of items_: those that wait for others,
  std::size_t waiting_ = 0;  // and of these those under way.
  std::uint64_t waiting_bytes_ = 0;
  std::uint64_t flight_bytes_ = 0;
  std::vector<Abandoned> abandoned_;  // Dropped under way; has room for all that are under way.
  std::uint64_t last_seq_ = 0;
  std::uint64_t begun_ = 0;  // The highest of those that went out.
  std::uint64_t acknowledged_ = 0;
  std::uint64_t last_request_ = 0;
  std::uint64_t hello_request_ = 0;

  // The frame being sent.
  Bytes out_head_;
  Body out_body_;
  const Call* out_call_ = nullptr;  // Whose memory out_body_ is.
  std::size_t out_sent_ = 0;
  std::size_t out_bytes_ = 0;  // 0: none.
  std::uint64_t out_request_ = 0;
  bool out_is_first_try_ = false;
};

}  // namespace gradring::ps
