// Probes: asks kernels whether anybody listens at other ranks' doors, and hangs up as soon as it
// knows. For the monitor of a new coordinator, which has no connection yet to those that have not
// come.
#pragma once

#include <poll.h>

#include <map>
#include <vector>

#include "base/types.h"
#include "transport/links/fd.h"
#include "wire/messages.h"

namespace gradring::transport {

class Probes {
 public:
  // At the TCP port of `member`, which is `rank`'s. Does nothing where that is under way.
  void ask(Rank rank, const wire::Member& member);
  void add_polls(std::vector<pollfd>& polls) const;
  // Does what can be done without waiting. Whose host says that nobody listens: their processes
  // have ended. Of all others nothing is known.
  std::vector<Rank> work();

 private:
  std::map<Rank, Fd> under_way_;
  std::vector<Rank> refused_;
};

}  // namespace gradring::transport
