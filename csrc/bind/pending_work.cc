#include "bind/pending_work.h"

#include "bind/abandoned.h"

namespace gradring::bind {
namespace {

struct LeftWork {
  std::weak_ptr<collectives::Communicator> communicator;
  std::shared_ptr<collectives::Work> work;
  std::shared_ptr<collectives::Transfer> transfer;
  Buffer input;
  Buffer output;
  Buffer beside;
  Apart apart;

  // A communicator that is gone has no thread any more that could touch the buffers.
  bool is_over() const {
    const auto user = communicator.lock();
    if (!user) return true;
    // In a forked child nothing of the parent's ends, and its locks may be held for ever.
    if (!user->is_here()) return false;
    return work ? work->is_done() : user->point_to_point().is_done(*transfer);
  }
};

}  // namespace

PendingWork::~PendingWork() {
  abandoned<LeftWork>().release_finished();
  if (!communicator || (!work && !transfer)) return;
  if (communicator->is_here() && done()) return;
  abandoned<LeftWork>().add({communicator, std::move(work), std::move(transfer), std::move(input),
                             std::move(output), std::move(beside), std::move(apart)});
}

}  // namespace gradring::bind
