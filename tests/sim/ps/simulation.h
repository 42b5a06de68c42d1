// PsSimulation: a whole parameter server in one thread, from one seed: servers and clients take
// turns on a virtual clock while the scenario's faults happen, and every promise is checked as soon
// as it can be. Used by gradring_ps_soak and by the tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/ps/network.h"
#include "sim/ps/probe.h"
#include "sim/ps/scenario.h"
#include "sim/ps/server.h"
#include "sim/ps/world.h"
#include "sim/quiet.h"
#include "sim/trace.h"

namespace gradring::sim {

struct PsOutcome {
  std::string complaint;  // The first broken promise, or nothing.
  std::uint64_t hash = 0;
  std::uint64_t calls = 0;
  std::uint64_t failed = 0;  // Of these, with a right error.
  std::uint64_t cuts = 0;    // Checkpoints that were taken and judged.
  std::uint64_t reconnections = 0;
  std::uint64_t rows_judged = 0;   // That the counting program has pulled.
  std::uint64_t dense_judged = 0;  // Dense tables that it has pulled.
  std::uint64_t dense_parts = 0;   // Of its pushes; each is judged at the end, and in checkpoints.
  std::uint64_t rows_removed = 0;  // By ticks and shrinks.
  std::uint64_t replicas_compared = 0;
  std::uint64_t claims_compared = 0;  // Counters.
  std::uint64_t rules_compared = 0;   // Of all shards, at the end and in checkpoints.
  std::uint64_t rules_made_anew = 0;  // Calls after one that another client's had beaten.
};

PsOutcome simulate(const PsScenario& scenario, bool is_printed = false);

class PsSimulation {
 public:
  PsSimulation(const PsScenario& scenario, bool is_printed);
  PsOutcome run();

 private:
  struct Place {  // A client's number, and the process that has it now.
    std::unique_ptr<PsClient> client;
    std::unique_ptr<PsProgram> program;
    bool comes_back = false;
  };
  struct Planned {
    PsFault fault;
    enum class State : std::uint8_t { kArmed, kOn, kOver } state = State::kArmed;
    Time ends{};
  };

  void start_client(std::uint32_t place);
  std::uint32_t number_of(std::uint32_t place) const;
  std::unique_ptr<transport::MemoryLink> dial(PsClient& client, std::uint32_t shard);
  void round();
  bool runs(std::size_t member) const;  // Servers, then places.
  bool turn(std::size_t member);
  void pass_time();
  Time next_event() const;
  bool all_are_over() const;

  void strike();
  void start(Planned& planned);
  void stop(const PsFault& fault);
  void calm_down();

  std::unique_ptr<ps::Shard> replayed(std::uint32_t shard, std::size_t records);
  std::string compare(ps::Shard& one, ps::Shard& other) const;
  void check_cut(std::uint64_t cut, const std::vector<std::size_t>& done_before);
  void check_rules(const std::string& where, const std::vector<std::unique_ptr<PsProbe>>& probes);
  void check_end();
  void check_claims();
  void check_replicas(const PsLedger::Reader& read);

  const PsScenario& scenario_;
  Trace trace_;
  PsNetwork network_;
  PsWorld world_;
  Dice dice_;
  std::vector<std::unique_ptr<PsServer>> servers_;
  std::vector<Place> places_;  // The saver's is the last.
  std::vector<Planned> faults_;
  std::uint64_t last_process_ = 0;
  Quiet quiet_;
};

}  // namespace gradring::sim
