// The ranks of one host as threads of this process, around one shared-memory segment: each with its
// own Flat and its own mapping, as processes would have. Used by the tests of flat.h.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "collectives/flat/flat.h"
#include "support/collectives/plan_cases.h"

namespace gradring::testing {

// How the others can learn that a rank left, in any order: from its goodbye on the control
// connection, from its flag in the memory.
enum class Leaving { kGoodbye, kFlag, kBoth };

class FlatTeam {
 public:
  // `processors`: that the host is said to have, and whether of that kind (base/processor.h).
  explicit FlatTeam(Rank ranks, Rank processors = 64, bool core_lines_are_slow = true);

  Rank ranks() const { return static_cast<Rank>(members_.size()); }
  collectives::Flat& flat(Rank rank) { return *members_[static_cast<std::size_t>(rank)].flat; }
  transport::Group& group(Rank rank) { return *members_[static_cast<std::size_t>(rank)].group; }

  // One call by one rank; numbers it like a communicator does.
  void call(Rank rank, const PlanCase& c, Memory& memory, Millis timeout = Millis{20000});

  void leave(Rank rank, Leaving how);

  void skip_number(Rank rank) { ++members_[static_cast<std::size_t>(rank)].seq; }

  // Runs `as_rank` for every rank at once and returns what each threw (null: nothing).
  std::vector<std::exception_ptr> run(const std::function<void(Rank)>& as_rank);

 private:
  struct Member {
    std::unique_ptr<transport::Group> group;
    std::unique_ptr<collectives::Flat> flat;
    std::uint64_t seq = 0;
  };
  std::vector<Member> members_;
};

// The kind and text of what a rank threw.
struct Thrown {
  ErrorKind kind = ErrorKind::kNone;
  Rank lost_rank = -1;
  std::string text;
  bool is_deadline = false;
};
Thrown thrown_by(const std::exception_ptr& error);

// Ranks of a world are numbered from here in a team's group, so that the two cannot be confused.
inline constexpr Rank kFirstWorldRank = 10;

}  // namespace gradring::testing
