// PsNetwork: the connections between clients and shards, and what becomes of them. Connections are
// MemoryWires. Used by the simulation of the parameter server, in its one thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <utility>

#include "sim/dice.h"
#include "sim/ps/scenario.h"
#include "transport/links/memory_link.h"

namespace gradring::sim {

class PsNetwork {
 public:
  explicit PsNetwork(const PsScenario& scenario) : scenario_(scenario), dice_(scenario.seed + 5) {}

  transport::MemoryWeather weather;
  Time now() const { return weather.now; }

  struct Ends {
    std::unique_ptr<transport::MemoryLink> client;
    std::unique_ptr<transport::MemoryLink> server;
  };
  // `client` is a process: a later one of the same number has another.
  Ends join(std::uint64_t client, std::uint32_t server);
  bool is_apart(std::uint64_t client, std::uint32_t server) const {
    return apart_.contains({client, server});
  }

  void reset(std::uint64_t client, std::uint32_t server);
  void reset_server(std::uint32_t server);
  void set_apart(std::uint64_t client, std::uint32_t server, bool is_apart);
  // From now on connections are whole.
  void calm_down() { is_calm_ = true; }

  Time next_event() const;
  // Connections made in place of one that broke.
  std::uint64_t reconnections() const { return reconnections_; }

 private:
  struct Cable {
    std::uint64_t client = 0;
    std::uint32_t server = 0;
    std::weak_ptr<transport::MemoryWire> wire;
  };

  const PsScenario& scenario_;
  Dice dice_;
  std::list<Cable> cables_;
  std::set<std::pair<std::uint64_t, std::uint32_t>> apart_;
  std::set<std::pair<std::uint64_t, std::uint32_t>> joined_;
  std::uint64_t reconnections_ = 0;
  bool is_calm_ = false;
};

}  // namespace gradring::sim
