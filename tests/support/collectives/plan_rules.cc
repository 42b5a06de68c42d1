#include "support/collectives/plan_rules.h"

#include <algorithm>
#include <vector>

#include "base/text.h"

namespace gradring::testing {

using collectives::Action;
using collectives::ActionKind;
using collectives::Place;
using collectives::Plan;
using collectives::Slice;

namespace {

// Scratch gets addresses of its own, far from the user's memory.
constexpr std::uint64_t kScratchBase = std::uint64_t{1} << 62;

struct Access {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint32_t action;
  bool writes;
};

std::uint64_t address(const Memory& memory, Slice slice) {
  if (slice.place == Place::kScratch) return kScratchBase + slice.offset_bytes;
  const bool is_input = slice.place == Place::kInput;
  return (is_input ? memory.input_at : memory.output_at) + slice.offset_bytes;
}

std::uint64_t capacity(const Plan& plan, const Memory& memory, Place place) {
  if (place == Place::kScratch) return plan.scratch_bytes;
  return place == Place::kInput ? memory.input_bytes : memory.output_bytes;
}

std::vector<Slice> sources_of(const Plan& plan, const Action& action) {
  if (action.kind == ActionKind::kSend) return {action.at};
  const auto first = plan.sources.begin() + action.first_source;
  return {first, first + action.source_count};
}

std::string broken_form(const Plan& plan, const Memory& memory, std::uint32_t index, Rank rank,
                        Rank world_size) {
  const Action& action = plan.actions[index];
  const bool talks = action.kind == ActionKind::kSend || action.kind == ActionKind::kRecv;
  if (action.bytes == 0) return "it moves no bytes";
  if (talks && (action.peer < 0 || action.peer >= world_size || action.peer == rank)) {
    return str("it talks to ", action.peer);
  }
  if (talks && action.source_count != 0) return "a transfer has sources";
  if (action.kind == ActionKind::kCopy && action.source_count != 1)
    return "a copy has not one source";
  if (action.kind == ActionKind::kReduce && action.source_count < 2) return "nothing to add";
  if (action.kind != ActionKind::kSend && action.at.place == Place::kInput)
    return "it writes input";
  std::vector<Slice> touched = sources_of(plan, action);
  touched.push_back(action.at);
  for (const Slice slice : touched) {
    if (slice.offset_bytes + action.bytes > capacity(plan, memory, slice.place)) {
      return "it leaves its buffer";
    }
  }
  for (std::uint32_t i = 0; i < action.dependent_count; ++i) {
    if (plan.dependents[action.first_dependent + i] <= index)
      return "an earlier action waits for it";
  }
  return "";
}

// Which actions are sure to be complete when an action starts: a row of bits for each.
class Ancestors {
 public:
  explicit Ancestors(const Plan& plan)
      : words_((plan.actions.size() + 63) / 64), bits_(words_ * plan.actions.size(), 0) {
    for (std::uint32_t i = 0; i < plan.actions.size(); ++i) {
      const Action& action = plan.actions[i];
      for (std::uint32_t d = 0; d < action.dependent_count; ++d) {
        const std::size_t later = plan.dependents[action.first_dependent + d];
        for (std::size_t word = 0; word <= i / 64; ++word) {
          bits_[later * words_ + word] |= bits_[i * words_ + word];
        }
        bits_[later * words_ + i / 64] |= std::uint64_t{1} << i % 64;
      }
    }
  }

  bool has(std::uint32_t action, std::uint32_t ancestor) const {
    return (bits_[action * words_ + ancestor / 64] >> ancestor % 64 & 1) != 0;
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

std::string broken_waits(const Plan& plan) {
  std::vector<std::uint32_t> counted(plan.actions.size(), 0);
  std::size_t edges = 0;
  for (const Action& action : plan.actions) {
    edges += action.dependent_count;
    for (std::uint32_t i = 0; i < action.dependent_count; ++i) {
      ++counted[plan.dependents[action.first_dependent + i]];
    }
  }
  if (edges != plan.dependents.size()) return "an edge belongs to no action";
  for (std::size_t i = 0; i < counted.size(); ++i) {
    if (counted[i] != plan.actions[i].wait_count) return str("action ", i, " miscounts its waits");
  }
  return "";
}

std::vector<Access> accesses_of(const Plan& plan, const Memory& memory) {
  std::vector<Access> accesses;
  for (std::uint32_t i = 0; i < plan.actions.size(); ++i) {
    const Action& action = plan.actions[i];
    const std::uint64_t at = address(memory, action.at);
    const std::vector<Slice> sources = sources_of(plan, action);
    // The run skips a copy onto itself.
    if (action.kind == ActionKind::kCopy && address(memory, sources.front()) == at) continue;
    for (const Slice source : sources) {
      const std::uint64_t from = address(memory, source);
      accesses.push_back({from, from + action.bytes, i, false});
    }
    if (action.kind != ActionKind::kSend) accesses.push_back({at, at + action.bytes, i, true});
  }
  std::sort(accesses.begin(), accesses.end(),
            [](const Access& a, const Access& b) { return a.begin < b.begin; });
  return accesses;
}

std::string conflict(const Access& a, const Access& b, const Ancestors& ancestors) {
  if (!a.writes && !b.writes) return "";
  if (a.action == b.action) {
    return a.begin == b.begin ? "" : str("action ", a.action, " overlaps its own operand");
  }
  const auto [first, second] = std::minmax(a.action, b.action);
  if (ancestors.has(second, first)) return "";
  return str("actions ", first, " and ", second, " touch the same bytes in no fixed order");
}

}  // namespace

std::string broken_rule(const Plan& plan, const Memory& memory, Rank rank, Rank world_size) {
  for (std::uint32_t i = 0; i < plan.actions.size(); ++i) {
    const std::string broken = broken_form(plan, memory, i, rank, world_size);
    if (!broken.empty()) return str("action ", i, ": ", broken);
  }
  if (const std::string broken = broken_waits(plan); !broken.empty()) return broken;
  const Ancestors ancestors(plan);
  std::vector<Access> open;
  for (const Access& access : accesses_of(plan, memory)) {
    std::erase_if(open, [&](const Access& other) { return other.end <= access.begin; });
    for (const Access& other : open) {
      const std::string broken = conflict(other, access, ancestors);
      if (!broken.empty()) return broken;
    }
    open.push_back(access);
  }
  return "";
}

}  // namespace gradring::testing
