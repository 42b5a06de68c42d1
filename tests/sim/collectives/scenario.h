// Scenario: what one seed says will happen: who is there, what they call, what the network is like
// and what breaks. Plain values, drawn before the simulation starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/types.h"
#include "sim/dice.h"
#include "support/collectives/plan_cases.h"

namespace gradring::sim {

enum class FaultKind : std::uint8_t {
  kKill,         // The process dies; its connections are reset.
  kFreeze,       // It does not run for a while, or for good.
  kCutOff,       // The network to it goes silent for a while, or for good.
  kLeave,        // It closes its communicator and ends, in good order, in the middle of things.
  kDropData,     // Its data connection to `other` breaks at byte `byte`.
  kDropControl,  // Its connection to the coordinator is reset.
  kStorm,        // Everybody's bytes are late for a while.
  kCutPair,      // The network between it and `other` is silent, for a while or for good.
};
inline constexpr std::uint64_t kFaultKinds = 8;
std::string_view name(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  Rank rank = 0;   // World rank.
  Rank other = 0;  // kDropData, kDropControl, kCutPair.
  std::uint64_t byte = 0;
  std::size_t operation = 0;  // It happens `after` this rank has begun this operation.
  Micros after{0};
  std::optional<Micros> duration;  // Nothing: for good.
};

struct WrongCall {  // One rank calls something else.
  Rank rank = 0;    // Rank of the group.
  std::size_t operation = 0;
  testing::PlanCase called;
};

struct Scenario {
  std::uint64_t seed = 0;
  Rank world_size = 1;
  std::vector<Rank> members;  // Of the communicator, as world ranks; the others only look on.
  Millis heartbeat_timeout{1000};
  Millis operation_timeout{1000};
  std::vector<testing::PlanCase> operations;
  std::optional<WrongCall> wrong_call;
  std::vector<Fault> faults;
  bool leaves_when_done = false;    // The process ends at once after its last operation.
  bool leaves_when_failed = false;  // The same after an error.
  bool shrinks = false;             // Survivors of a lost peer go on together.
  Micros longest_pause{0};          // Between operations.
  std::size_t link_bytes = 0;
  std::size_t streams = 1;  // Of a link.
  std::uint32_t short_percent = 0;
  Micros max_delay{0};

  std::string text() const;
};

Scenario scenario_of(std::uint64_t seed);

}  // namespace gradring::sim
