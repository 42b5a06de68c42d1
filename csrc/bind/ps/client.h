// _core.PsClient, as its binding's files share it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "ps/client/client.h"
#include "ps/client/remote_table.h"

namespace gradring::bind {

// A connected client and the tables it has made, by the numbers Python knows them by.
struct PsClient {
  std::shared_ptr<ps::Client> client;
  std::vector<std::shared_ptr<ps::RemoteTable>> tables;  // Guarded by the GIL.

  const std::shared_ptr<ps::RemoteTable>& table(std::size_t number) const;
  // A negative one is the connection's.
  Millis timeout_of(std::int64_t timeout_ms) const;
};

// Everything besides pull and push: making tables, whole rows, clocks, checkpoints.
void register_ps_tables(pybind11::class_<PsClient>& type);
void register_ps_cuts(pybind11::class_<PsClient>& type);

}  // namespace gradring::bind
