#include "bind/ps_work.h"

#include <algorithm>
#include <iterator>

namespace gradring::bind {
namespace {

namespace py = pybind11;

constexpr Millis kForGood{std::chrono::hours(24 * 365)};

// What is left of a PsWork that was dropped before its call was done.
struct Abandoned {
  std::shared_ptr<ps::Call> call;
  std::vector<Buffer> buffers;
};

// Guarded by the GIL. Never destroyed: when the process ends a call may still be running.
std::vector<Abandoned>& abandoned() {
  static auto* const list = new std::vector<Abandoned>;
  return *list;
}

void release_finished() {
  auto& list = abandoned();
  const auto first = std::stable_partition(
      list.begin(), list.end(), [](const Abandoned& one) { return !one.call->is_done(); });
  // Releasing a buffer may run Python, and so come back here: the list is whole by then.
  const std::vector<Abandoned> finished(std::make_move_iterator(first),
                                        std::make_move_iterator(list.end()));
  list.erase(first, list.end());
}

}  // namespace

PsWork::~PsWork() {
  if (!abandoned().empty()) release_finished();
  if (call && !call->is_done()) abandoned().push_back({std::move(call), std::move(buffers)});
}

py::object PsWork::wait(std::int64_t timeout_ms) {
  {
    const py::gil_scoped_release release;
    client->wait(call, timeout_ms < 0 ? kForGood : Millis{timeout_ms});
  }
  return result(*call);
}

}  // namespace gradring::bind
