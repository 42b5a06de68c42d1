#include "bind/pending_work.h"

#include "bind/abandoned.h"

namespace gradring::bind {
namespace {

struct LeftWork {
  std::uint64_t generation;
  std::shared_ptr<collectives::Work> work;
  std::shared_ptr<collectives::Transfer> transfer;
  Buffer input;
  Buffer output;
  Buffer beside;
  Apart apart;

  // Asked of the work alone: a communicator that nobody holds any more goes on sending for as long
  // as it lingers, and has ended all its works when it is gone.
  bool is_over() const {
    // In a forked child nothing of the parent's ends, and its locks may be held for ever.
    if (transport::fork_generation() != generation) return false;
    return work ? work->is_done() : collectives::PointToPoint::is_done(*transfer);
  }
};

}  // namespace

PendingWork::~PendingWork() {
  abandoned<LeftWork>().release_finished();
  if (!communicator || (!work && !transfer)) return;
  if (communicator->is_here() && done()) return;
  abandoned<LeftWork>().add({generation, std::move(work), std::move(transfer), std::move(input),
                             std::move(output), std::move(beside), std::move(apart)});
}

}  // namespace gradring::bind
