// PsScenario: what one seed makes of a parameter server: how many servers and clients, what the
// clients do, and what breaks when. Plain values; pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "sim/dice.h"

namespace gradring::sim {

enum class PsWork : std::uint8_t {
  kCounting,  // Pushes of integers on hot and cold rows, pulls, and checkpoints under way.
  kBounded,   // Bounded staleness.
  kRounds,    // Rounds with weights.
  kGeo,       // Replicas that exchange deltas.
  kClaiming,  // Pushes of one that are told what it came to.
};
inline constexpr std::size_t kPsWorkCount = 5;

enum class PsFaultKind : std::uint8_t {
  kReset,         // A connection breaks; what was under way is lost.
  kPartition,     // A client and a server do not hear each other.
  kFreezeClient,  // A process stands still.
  kFreezeServer,
  kKillServer,   // It starts again, from its log if it has one.
  kCrashClient,  // A later process comes in its place, but for rounds.
};
inline constexpr std::size_t kPsFaultKindCount = 6;

struct PsFault {
  PsFaultKind kind = PsFaultKind::kReset;
  std::uint32_t client = 0;
  std::uint32_t server = 0;
  std::uint64_t after_calls = 0;  // It strikes once so many calls have ended.
  Micros lasts{0};
};

struct PsScenario {
  std::uint64_t seed = 0;
  PsWork work = PsWork::kCounting;
  std::uint32_t servers = 1;
  std::uint32_t threads = 1;  // Shards of each server.
  std::uint32_t clients = 1;
  std::uint32_t steps = 10;  // Of every client.
  std::uint32_t depth = 1;   // Calls that a client has under way at once.
  std::uint32_t staleness = 0;
  bool has_log = true;
  bool has_saver = false;     // Takes checkpoints while the others push.
  bool saver_pushes = false;  // The first client is the saver, too.
  bool has_poison = false;    // A client sends one request that the server cannot understand.
  Micros max_delay{0};
  std::uint32_t short_percent = 0;
  std::uint32_t break_percent = 0;      // Of the connections: they break at some byte.
  std::uint32_t duplicate_percent = 0;  // Of the requests: they arrive twice.
  std::uint32_t lost_percent = 0;       // Of the changes: they do not arrive, later ones do.
  std::uint32_t reorder_percent = 0;    // Of the requests: the next one arrives before them.
  std::uint64_t flight_bytes = limits::kPsFlightBytes;  // So much may be under way, or be held.
  std::vector<PsFault> faults;

  Millis client_grace{1000};
  Millis answer_time{400};
  Millis call_timeout{4000};
  Millis gate_wait{3000};

  std::uint32_t shards() const { return servers * threads; }
  // Nothing that happens lasts so long that a call may fail.
  bool is_gentle() const;
  std::string text() const;
};

PsScenario ps_scenario_of(std::uint64_t seed);

}  // namespace gradring::sim
