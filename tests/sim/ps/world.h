// PsWorld: what all programs of a simulation of the parameter server share, and what they are
// judged by. PsProgram: what one client does.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/ps/client.h"
#include "sim/ps/ledger.h"
#include "sim/ps/scenario.h"
#include "sim/trace.h"

namespace gradring::sim {

inline const std::string kAdagrad = "adagrad";
inline constexpr std::uint64_t kPsDomain = 77;
inline constexpr std::uint32_t kSaverNumber = 1u << 31;

struct SeenRow {
  std::uint32_t version = 0;
  std::vector<float> counts;
};

struct PsWorld {
  PsWorld(const PsScenario& of, Trace& with)
      : scenario(of), trace(with), ledger(of), dice(of.seed + 99) {}

  const PsScenario& scenario;
  Trace& trace;
  PsLedger ledger;
  Dice dice;
  std::string complaint;
  std::uint64_t calls_ended = 0;
  std::uint64_t calls_failed = 0;
  std::uint64_t cuts_taken = 0;
  std::uint64_t rows_judged = 0;   // Of the counting program's pulls.
  std::uint64_t dense_judged = 0;  // Dense tables that were pulled and judged.
  std::uint64_t rows_removed = 0;  // By ticks and shrinks, as their answers say.
  // Changes of a rule that nobody knows to be done everywhere: for good, if who made it is gone.
  std::uint64_t rules_under_way = 0;
  std::uint64_t rules_made_anew = 0;  // Calls for it after one that another's had beaten.
  std::uint64_t rules_compared = 0;   // Of all shards.
  // As each process knows the one whose rule is changed.
  std::map<std::uint64_t, std::shared_ptr<ps::RemoteTable>> tables;
  std::uint64_t replicas_compared = 0;
  std::uint64_t claims_compared = 0;  // Counters of which all numbers must have been told.

  std::set<std::uint32_t> troubled;     // Clients that were crashed, frozen, cut off, or failed.
  std::set<std::uint32_t> still_going;  // Clients whose program is not over.

  // By client number, over all of its processes: what it has seen and said.
  std::map<std::pair<std::uint64_t, std::uint64_t>, SeenRow> rows_seen;
  std::map<std::uint64_t, std::vector<float>> dense_seen;
  std::uint32_t tick = 0;                               // The latest that anybody has told.
  std::map<std::uint32_t, std::uint64_t> clocks;        // Acknowledged.
  std::map<std::uint32_t, std::uint64_t> marks_pushed;  // Submitted, in bounded staleness.
  std::map<std::uint32_t, std::map<std::uint64_t, std::vector<float>>> replicas;  // GEO.
  std::map<std::pair<std::uint32_t, std::uint64_t>, float> given;  // Submitted, in GEO.
  std::map<std::uint64_t, std::set<float>> claims;                 // Numbers told, by counter.
  std::map<std::uint64_t, std::uint64_t> claims_sent;

  // The simulation's.
  std::function<bool(std::uint32_t client)> was_given_up;
  std::function<void(std::uint64_t cut, const std::vector<std::size_t>& done_before)> check_cut;

  void complain(const std::string& text) {
    if (complaint.empty()) complaint = text;
  }
  // Judges how a call ended. Whether it has succeeded.
  bool has_succeeded(const PsClient& client, const ps::Call& call);
};

class PsProgram {
 public:
  virtual ~PsProgram() = default;
  virtual void step() = 0;
  virtual bool is_over() const = 0;
};

std::unique_ptr<PsProgram> make_counting(PsClient& client, PsWorld& world);
std::unique_ptr<PsProgram> make_bounded(PsClient& client, PsWorld& world);
std::unique_ptr<PsProgram> make_rounds(PsClient& client, PsWorld& world);
std::unique_ptr<PsProgram> make_geo(PsClient& client, PsWorld& world);
std::unique_ptr<PsProgram> make_claiming(PsClient& client, PsWorld& world);
std::unique_ptr<PsProgram> make_saver(PsClient& client, PsWorld& world);
std::unique_ptr<PsProgram> make_counting_saver(PsClient& client, PsWorld& world);

// The tables that programs use.
ps::TableSpec counts_table(const PsScenario& scenario);
ps::TableSpec adagrad_table();
ps::TableSpec dense_table(const PsScenario& scenario);

// Ids by the shard they belong to.
std::vector<std::vector<std::uint64_t>> by_shard(const std::vector<std::uint64_t>& ids,
                                                 std::uint32_t shards);

}  // namespace gradring::sim
