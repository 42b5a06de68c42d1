// Spans: stretches of user code with a name ("forward"), kept beside the operations so that records
// and traces show what a rank did between two calls. One ring a process, of fixed size. Written by
// the thread that runs the code, under a lock that is held for a moment; read without it.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "base/record.h"

namespace gradring {

struct SpanRecord {
  std::string name;
  std::uint64_t thread = 0;  // As the system numbers it.
  Ticks begun = 0;
  Ticks ended = 0;  // 0: it goes on.
};

class Spans {
 public:
  static Spans& of_process();

  // The place of the new span, for end(); nullptr if too many are open.
  OperationRing::Slot* begin(const std::string& name);
  void end(OperationRing::Slot* slot);
  std::vector<SpanRecord> read() const;  // In the order of beginning.

 private:
  Spans();

  std::mutex mutex_;  // Guards writing to the ring.
  OperationRing ring_;
  Guarded<std::vector<std::string>> names_;  // Only grows, up to a limit.
};

}  // namespace gradring
