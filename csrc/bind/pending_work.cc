#include "bind/pending_work.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace gradring::bind {
namespace {

// What is left of a PendingWork that was dropped before its operation was done.
struct Abandoned {
  std::weak_ptr<collectives::Communicator> communicator;
  std::shared_ptr<collectives::Work> work;
  std::shared_ptr<collectives::Transfer> transfer;
  Buffer input;
  Buffer output;
  Buffer beside;

  // A communicator that is gone has no thread any more that could touch the buffers.
  bool is_over() const {
    const auto user = communicator.lock();
    return !user || (work ? work->is_done() : user->point_to_point().is_done(*transfer));
  }
};

// Guarded by the GIL. Never destroyed: when the process ends an operation may still be running.
std::vector<Abandoned>& abandoned() {
  static auto* const list = new std::vector<Abandoned>;
  return *list;
}

void release_finished() {
  auto& list = abandoned();
  const auto first = std::stable_partition(list.begin(), list.end(),
                                           [](const Abandoned& one) { return !one.is_over(); });
  // Releasing a buffer may run Python, and so come back here: the list is whole by then.
  const std::vector<Abandoned> finished(std::make_move_iterator(first),
                                        std::make_move_iterator(list.end()));
  list.erase(first, list.end());
}

}  // namespace

PendingWork::~PendingWork() {
  if (!abandoned().empty()) release_finished();
  if (!communicator || (!work && !transfer) || done()) return;
  abandoned().push_back({communicator, std::move(work), std::move(transfer), std::move(input),
                         std::move(output), std::move(beside)});
}

}  // namespace gradring::bind
