// Quiet: whether nothing more happens until time passes. It is so once everybody who can run has
// had some turns for nothing since anything moved: one is not enough, as a transfer that got
// nothing may get something next time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gradring::sim {

class Quiet {
 public:
  Quiet(std::size_t members, int turns) : idle_turns_(members), turns_(turns) {}

  void break_off() { std::fill(idle_turns_.begin(), idle_turns_.end(), 0); }
  void note_turn(std::size_t member, bool moved) {
    if (moved) return break_off();
    ++idle_turns_[member];
  }
  // `runs(member)`: whether it can have turns at all.
  template <typename Runs>
  bool is_complete(const Runs& runs) const {
    for (std::size_t member = 0; member < idle_turns_.size(); ++member)
      if (idle_turns_[member] < turns_ && runs(member)) return false;
    return true;
  }

 private:
  std::vector<int> idle_turns_;
  const int turns_;
};

}  // namespace gradring::sim
