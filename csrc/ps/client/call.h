// Call: what a user asked of the parameter server, cut into parts that each are one request to one
// shard. The session of the shard sends a part and hands in its answer. No I/O, no threads: used by
// whoever drives the client core, except where it says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "wire/ps_frames.h"

namespace gradring::ps {

struct Part {
  std::uint32_t shard = 0;
  wire::PsHeader header;         // Its request, seq and payload_bytes are the session's.
  Bytes head;                    // The payload after the tail, before the body.
  std::uint64_t body_bytes = 0;  // What body() will have.
  std::uint64_t rows = 0;        // For errors.
  bool is_answered = false;
};

// The end of a request's payload, sent from where it lies.
struct Body {
  std::span<const std::byte> first;
  std::span<const std::byte> second;
};

class Call {
 public:
  // `what`: "push to table 'users'", as errors say it.
  explicit Call(std::string what) : what_(std::move(what)) {}
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  const std::string& what() const { return what_; }
  std::vector<Part>& parts() { return parts_; }
  const std::vector<Part>& parts() const { return parts_; }

  // Asked once the part's turn to be sent has come, again for every further try; stays valid until
  // sent() or release().
  virtual Body body(std::size_t /*part*/) { return {}; }
  // The link has taken the whole part. It may have to go out once more.
  virtual void sent(std::size_t /*part*/) {}
  virtual void release(std::size_t /*part*/) {}
  // Where the payload of an answer may be written straight away; empty: it is read elsewhere and
  // handed in.
  virtual std::span<std::byte> destination(std::size_t /*part*/, const wire::PsHeader& /*answer*/) {
    return {};
  }
  // The shard says that it has not done the part.
  virtual void refused(std::size_t /*part*/) {}
  // Throws ProtocolError if it is no answer to this.
  virtual void take(std::size_t part, const wire::PsHeader& answer,
                    std::span<const std::byte> payload) = 0;

  // May take its time on the server: nobody wonders where the answer is.
  virtual bool may_wait() const { return false; }
  // Its timeout counts from its beginning, whatever else goes on with its shards meanwhile.
  virtual bool ends_on_time() const { return false; }

  // Whether only those who wait for it hear of its failure: nobody has to. Said before it starts.
  bool is_hint() const { return is_hint_; }
  void make_hint() { is_hint_ = true; }

  // Whether it is the rest of what another call has begun: it starts without waiting for room, as
  // half of that would be with the servers otherwise. Said before it starts.
  bool goes_along() const { return goes_along_; }
  void go_along() { goes_along_ = true; }

  // Of the caller's arrays, which it keeps until it is done. Said before it starts.
  std::uint64_t array_bytes() const { return array_bytes_; }
  void note_array_bytes(std::uint64_t bytes) { array_bytes_ = bytes; }

  // Readable by any thread once is_done().
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  const Failure& failure() const { return failure_; }

  // The client core's.
  struct State {
    Millis timeout{0};
    Time begun{};
    std::size_t answered = 0;
    wire::Tail tail;  // For every shard the seq of the last request there, with this call's.
  };
  State& state() { return state_; }
  const State& state() const { return state_; }
  void note_failure(Failure failure) {
    if (!failure_) failure_ = std::move(failure);
  }
  void finish() { is_done_.store(true, std::memory_order_release); }

 protected:
  std::vector<Part> parts_;

 private:
  std::string what_;
  bool is_hint_ = false;
  bool goes_along_ = false;
  std::uint64_t array_bytes_ = 0;
  State state_;
  Failure failure_;
  std::atomic<bool> is_done_{false};  // Set (release) after everything else.
};

}  // namespace gradring::ps
