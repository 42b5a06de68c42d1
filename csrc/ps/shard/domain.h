// Domain: the workers that train together, and how far each has come. Answers two questions: may
// this pull go on (gates), and is this round complete. Owned by its shard; no I/O, no clock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/json.h"
#include "ps/protocol/payloads.h"

namespace gradring::ps {

// What one worker gave to one table in one round.
struct Contribution {
  std::vector<std::uint64_t> ids;  // Empty for a dense table.
  Floats values;
};

// By table, then by worker: both in ascending order, which is the order of additions.
using RoundTables = std::map<std::uint64_t, std::map<std::uint32_t, Contribution>>;

struct ReadyRound {
  std::uint64_t clock = 0;
  RoundTables tables;
  std::map<std::uint32_t, double> weights;  // Of every worker of the domain.
};

class Domain {
 public:
  // `client` is done with all steps before `clock`. Throws InvalidArgument if that contradicts what
  // others said of the domain.
  void set_clock(std::uint32_t client, std::uint64_t clock, const ClockPayload& payload);
  void leave(std::uint32_t client);
  void lose(std::uint32_t client);  // Given up, until its next set_clock.
  bool has(std::uint32_t client) const { return workers_.contains(client); }
  std::vector<std::uint32_t> here() const;  // The living.
  // No worker is left: nothing here matters to anybody any more.
  bool is_over() const;
  std::uint64_t living() const;

  bool is_open(const wire::Gate& gate) const;
  // Why a closed gate stays closed: TimedOut, or PeerLost if somebody it waits for is lost.
  Failure why_closed(const wire::Gate& gate) const;
  // A worker that the round waits for was lost: nobody should wait any longer.
  bool is_hopeless(const wire::Gate& gate) const;

  // Throws InvalidArgument if the round is over or the client is no worker of it.
  Contribution& contribution(std::uint32_t client, std::uint64_t clock, std::uint64_t table);
  // Forgets what the client gave to rounds that it has not ended.
  void drop_unfinished(std::uint32_t client);
  // Forgets what anybody gave to rounds that are not applied.
  void drop_contributions() { rounds_.clear(); }
  bool has_ready_round() const;
  ReadyRound take_ready_round();

  // All but contributions, and those one by one: each may be as long as a table.
  void save(Bytes& out) const;
  void for_each_contribution(const std::function<void(Bytes)>& take) const;
  static Domain restore(wire::Reader& in);
  void restore_contribution(wire::Reader& in);
  void stats(std::uint64_t id, JsonWriter& json) const;

 private:
  enum class Presence : std::uint8_t { kHere = 0, kLeft = 1, kLost = 2 };
  struct Worker {
    Presence presence = Presence::kHere;
    std::uint64_t clock = 0;
    std::map<std::uint64_t, double> weights;  // By round, until it is applied.
  };
  // Workers whose clock is below `clock` and that count.
  std::vector<std::uint32_t> behind(std::uint64_t clock) const;
  void require_worker(std::uint32_t client) const;

  bool is_round_ = false;
  std::uint32_t expected_ = 0;  // Workers 0 .. expected_-1 take part even before they come.
  std::uint64_t applied_ = 0;   // Rounds before this one are done.
  std::map<std::uint32_t, Worker> workers_;
  std::map<std::uint64_t, RoundTables> rounds_;
};

}  // namespace gradring::ps
