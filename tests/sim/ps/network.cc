#include "sim/ps/network.h"

#include <algorithm>

namespace gradring::sim {

using transport::MemoryLink;
using transport::MemoryScript;
using transport::MemoryWire;

PsNetwork::Ends PsNetwork::join(std::uint64_t client, std::uint32_t server) {
  if (!joined_.insert({client, server}).second) ++reconnections_;
  MemoryScript script;
  script.seed = dice_.any();
  script.capacity_bytes = 200 + dice_.below(32'000);
  if (!is_calm_ && dice_.percent(scenario_.break_percent))
    script.break_at_byte = 1 + dice_.below(20'000);
  const auto wire = std::make_shared<MemoryWire>(weather, script);
  std::erase_if(cables_, [](const Cable& cable) { return cable.wire.expired(); });
  cables_.push_back({client, server, wire});
  return {std::make_unique<MemoryLink>(wire, 0), std::make_unique<MemoryLink>(wire, 1)};
}

void PsNetwork::reset(std::uint64_t client, std::uint32_t server) {
  for (const Cable& cable : cables_) {
    const auto wire = cable.wire.lock();
    if (wire && cable.client == client && cable.server == server)
      wire->break_off(dice_.percent(50));
  }
}

void PsNetwork::reset_server(std::uint32_t server) {
  for (const Cable& cable : cables_) {
    const auto wire = cable.wire.lock();
    if (wire && cable.server == server && dice_.percent(50)) wire->break_off(true);
  }
}

void PsNetwork::set_apart(std::uint64_t client, std::uint32_t server, bool is_apart) {
  if (is_apart)
    apart_.insert({client, server});
  else
    apart_.erase({client, server});
  for (const Cable& cable : cables_)
    if (const auto wire = cable.wire.lock(); wire && cable.client == client)
      if (cable.server == server) wire->set_silent(is_apart);
}

Time PsNetwork::next_event() const {
  Time next = Time::max();
  for (const Cable& cable : cables_)
    if (const auto wire = cable.wire.lock())
      next = std::min({next, wire->next_arrival(0), wire->next_arrival(1)});
  return next;
}

}  // namespace gradring::sim
