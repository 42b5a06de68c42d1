#include "sim/ps/scenario.h"

#include <algorithm>

#include "base/text.h"

namespace gradring::sim {
namespace {

const char* name(PsWork work) {
  switch (work) {
    case PsWork::kCounting: return "counting";
    case PsWork::kBounded: return "bounded staleness";
    case PsWork::kRounds: return "rounds";
    case PsWork::kGeo: return "geo";
    case PsWork::kClaiming: return "claiming";
  }
  return "?";
}

std::string text_of(const PsFault& fault) {
  const auto client = str("client ", fault.client);
  const auto server = str("server ", fault.server);
  const auto rest = str(" after ", fault.after_calls, " calls, for ", fault.lasts.count(), " us");
  switch (fault.kind) {
    case PsFaultKind::kReset: return str("reset of ", client, " and ", server, rest);
    case PsFaultKind::kPartition: return str("silence between ", client, " and ", server, rest);
    case PsFaultKind::kFreezeClient: return str(client, " frozen", rest);
    case PsFaultKind::kFreezeServer: return str(server, " frozen", rest);
    case PsFaultKind::kKillServer: return str(server, " killed", rest);
    case PsFaultKind::kCrashClient: return str(client, " crashed", rest);
  }
  return "?";
}

PsFault fault_of(const PsScenario& scenario, bool is_gentle, Dice& dice) {
  PsFault fault;
  fault.kind = static_cast<PsFaultKind>(dice.below(kPsFaultKindCount));
  if (is_gentle && fault.kind == PsFaultKind::kCrashClient) fault.kind = PsFaultKind::kReset;
  fault.client = static_cast<std::uint32_t>(dice.below(scenario.clients));
  fault.server = static_cast<std::uint32_t>(dice.below(scenario.servers));
  fault.after_calls = dice.below(std::uint64_t{scenario.clients} * scenario.steps);
  fault.lasts = is_gentle          ? dice.any_magnitude(Micros{200'000})
                : dice.percent(50) ? dice.between(Micros{300'000}, Micros{8'000'000})
                                   : dice.any_magnitude(Micros{2'000'000});
  return fault;
}

}  // namespace

bool PsScenario::is_gentle() const {
  return has_log && !has_poison &&
         std::all_of(faults.begin(), faults.end(), [](const PsFault& fault) {
           return fault.kind != PsFaultKind::kCrashClient && fault.lasts <= Micros{200'000};
         });
}

std::string PsScenario::text() const {
  std::string text = str(
      "seed ", seed, ": ", name(work), ", ", servers, " servers of ", threads, " shards, ", clients,
      " clients, ", steps, " steps, depth ", depth, has_log ? "" : ", no log",
      has_saver ? ", checkpoints" : "", saver_pushes ? " by who pushes" : "",
      has_poison ? ", a poisoned request" : "", ", delay ", max_delay.count(), " us, ",
      short_percent, " % short, ", break_percent, " % break, ", duplicate_percent, " % twice, ",
      lost_percent, " % lost, ", reorder_percent, " % late, ", flight_bytes, " bytes under way");
  if (work == PsWork::kBounded) text += str(", staleness ", staleness);
  for (const PsFault& fault : faults) text += "\n  " + text_of(fault);
  return text;
}

PsScenario ps_scenario_of(std::uint64_t seed) {
  Dice dice(seed * 7919 + 13);
  PsScenario scenario;
  scenario.seed = seed;
  scenario.work =
      dice.percent(50) ? PsWork::kCounting : static_cast<PsWork>(dice.below(kPsWorkCount));
  scenario.servers = 1 + static_cast<std::uint32_t>(dice.below(3));
  scenario.threads = 1 + static_cast<std::uint32_t>(dice.below(2));
  scenario.clients = 1 + static_cast<std::uint32_t>(dice.below(4));
  scenario.steps = 4 + static_cast<std::uint32_t>(dice.below(30));
  scenario.depth = 1 + static_cast<std::uint32_t>(dice.below(4));
  scenario.staleness = static_cast<std::uint32_t>(dice.below(3));
  scenario.max_delay = dice.any_magnitude(Micros{5'000});
  scenario.short_percent = dice.percent(50) ? static_cast<std::uint32_t>(dice.below(60)) : 0;
  scenario.break_percent = dice.percent(40) ? static_cast<std::uint32_t>(dice.below(60)) : 0;
  scenario.duplicate_percent = dice.percent(40) ? static_cast<std::uint32_t>(dice.below(30)) : 0;
  const bool is_gentle = dice.percent(50);
  scenario.has_log = is_gentle || scenario.work != PsWork::kCounting || dice.percent(85);
  scenario.has_saver = scenario.work == PsWork::kCounting && scenario.has_log && dice.percent(60);
  scenario.has_poison = !is_gentle && scenario.work == PsWork::kCounting && dice.percent(10);
  for (std::uint64_t left = dice.below(6); left > 0; --left)
    scenario.faults.push_back(fault_of(scenario, is_gentle, dice));
  scenario.lost_percent = dice.percent(30) ? static_cast<std::uint32_t>(dice.below(8)) : 0;
  scenario.reorder_percent = dice.percent(30) ? static_cast<std::uint32_t>(dice.below(20)) : 0;
  if (dice.percent(50)) scenario.flight_bytes = 200 + dice.below(4000);
  scenario.saver_pushes = scenario.has_saver && dice.percent(50);
  return scenario;
}

}  // namespace gradring::sim
