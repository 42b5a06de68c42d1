// Steps: what an operation that is made of several may do on the thread that drives its
// communicator: collectives among some of the ranks, and waiting for what is not ours, such as a
// GPU. They are one operation to everybody else: one number, one record, one deadline for each
// stretch without progress, one failure.
#pragma once

#include <cstdint>
#include <functional>

#include "base/call.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/level.h"
#include "transport/membership/idle.h"

namespace gradring::collectives {

class Steps {
 public:
  Steps(Engine& engine, const Call& call, std::uint64_t seq, transport::Idle& idle)
      : engine_(engine), call_(call), seq_(seq), idle_(idle) {}

  // Returns when all ranks of the communicator are in this call. Throws where they are in others.
  void agree() { engine_.agree(call_, seq_, idle_); }
  // A collective among a level's ranks.
  void run(Level& level, const Operation& operation);
  // Looks again and again, until it is so. `what` is waited for, as errors say it.
  void wait_until(const std::function<bool()>& is_so, const char* what);

 private:
  Engine& engine_;
  const Call& call_;
  std::uint64_t seq_;
  transport::Idle& idle_;
};

class Composition {
 public:
  virtual ~Composition() = default;
  // Throws what went wrong; then the communicator is closed, on every rank.
  virtual void carry_out(Steps& steps) = 0;
  // It has failed, here or elsewhere, and the other ranks have been told: nothing of it may go on.
  virtual void give_up() noexcept = 0;
};

}  // namespace gradring::collectives
