// ClientCore: the client's protocol logic. Takes calls apart into requests to shards, numbers all
// of them at once so that each knows what belongs together, and says when a call is finished.
// Sans-I/O as Shard is: it is told of connections, frames and the time, and says what to send; the
// client's driver and the simulator run the same code. Owned by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps/client/call.h"
#include "ps/client/session.h"

namespace gradring::ps {

struct ClientCoreOptions {
  Hello hello;
  std::vector<std::string> addresses;  // Of each shard's server: there are so many shards.
  Millis answer_time{15000};           // See SessionOptions, and for the next one.
  std::uint64_t flight_bytes = limits::kPsFlightBytes;
};

class ClientCore {
 public:
  explicit ClientCore(const ClientCoreOptions& options);

  std::uint32_t shards() const { return static_cast<std::uint32_t>(sessions_.size()); }

  // Until the call is done its memory is in use. `timeout` is the longest time without progress on
  // any shard that has not answered yet.
  // Throws std::bad_alloc, and then nothing has begun.
  void submit(const std::shared_ptr<Call>& call, Millis timeout, Time now);
  // Ends one that could not be submitted. It finds no memory anywhere: nor does the next one.
  void refuse(Call& call, Failure failure);
  // Ends a call that is not done with this failure, and names what has no acknowledgement.
  void cancel(Call& call, Failure failure);
  void cancel_all(const Failure& failure);
  // There will never be a connection to this shard.
  void give_up(std::uint32_t shard, const Failure& failure);
  std::uint64_t finished() const { return finished_; }  // Calls so far.
  // When the slowest of the shards that this call still waits for last moved anything.
  Time progress_of(const Call& call) const;
  // "; 3 of 4 requests were answered", and exactly which changes have no acknowledgement.
  std::string describe_missing(const Call& call) const;
  // To be called by next_tick() at the latest.
  void tick(Time now);
  Time next_tick() const;

  // What each shard's connection wants and what happened to it: see Session.
  Session& session(std::uint32_t shard) { return sessions_[shard]; }
  const Session& session(std::uint32_t shard) const { return sessions_[shard]; }
  // Session::receive, and finishes the call that this was the last answer of.
  void receive(std::uint32_t shard, const wire::PsHeader& answer,
               std::span<const std::byte> payload, Time now);

 private:
  void finish_answered();
  void check_sessions();

  std::vector<Session> sessions_;
  std::vector<std::shared_ptr<Call>> calls_;  // In order of submission.
  std::uint64_t finished_ = 0;
};

}  // namespace gradring::ps
