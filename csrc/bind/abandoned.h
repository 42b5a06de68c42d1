// What is left of work that Python dropped before it was done: its buffers stay until it is over.
// Guarded by the GIL.
#pragma once

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace gradring::bind {

// Left has is_over().
template <typename Left>
class Abandoned {
 public:
  void add(Left left) { all_.push_back(std::move(left)); }

  void release_finished() {
    if (all_.empty()) return;
    const auto first = std::stable_partition(all_.begin(), all_.end(),
                                             [](const Left& one) { return !one.is_over(); });
    // Releasing a buffer may run Python, and so come back here: the list is whole by then.
    const std::vector<Left> finished(std::make_move_iterator(first),
                                     std::make_move_iterator(all_.end()));
    all_.erase(first, all_.end());
  }

 private:
  std::vector<Left> all_;
};

// Never destroyed: when the process ends the work may still be under way.
template <typename Left>
Abandoned<Left>& abandoned() {
  static auto* const list = new Abandoned<Left>;
  return *list;
}

}  // namespace gradring::bind
