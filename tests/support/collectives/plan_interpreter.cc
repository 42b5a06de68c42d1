#include "support/collectives/plan_interpreter.h"

#include <algorithm>
#include <bit>

#include "base/text.h"
#include "kernels/reduce.h"
#include "support/split_mix.h"

namespace gradring::testing {

using collectives::Action;
using collectives::ActionKind;
using collectives::Place;
using collectives::Plan;
using collectives::Slice;

namespace {

using Ranks = std::uint64_t;  // A set of ranks, a bit each: who has been heard from.

// What comes out in the order in which it went in, and no memory while that is nothing: a game has
// many that stay empty.
template <typename T>
class Line {
 public:
  bool empty() const { return first_ == items_.size(); }
  T& front() { return items_[first_]; }
  void push_back(const T& item) { items_.push_back(item); }
  void pop_front() {
    if (++first_ < items_.size()) return;
    items_.clear();
    first_ = 0;
  }

 private:
  std::vector<T> items_;
  std::size_t first_ = 0;
};

// One direction between two ranks: bytes in order, each stretch with what its sender had heard by
// then.
class Link {
 public:
  explicit Link(std::size_t capacity) : capacity_(capacity) {}

  std::size_t room() const { return capacity_ - queued(); }
  std::size_t queued() const { return bytes_.size() - taken_; }

  void put(const std::byte* from, std::size_t size, Ranks heard) {
    bytes_.insert(bytes_.end(), from, from + size);
    total_put_ += size;
    stretches_.push_back({total_put_, heard});
  }

  void take(std::byte* into, std::size_t size, Ranks& heard) {
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(taken_), size, into);
    taken_ += size;
    total_taken_ += size;
    while (!stretches_.empty()) {
      heard |= stretches_.front().heard;
      if (stretches_.front().end > total_taken_) break;
      stretches_.pop_front();
    }
    if (taken_ >= capacity_) {
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(taken_));
      taken_ = 0;
    }
  }

 private:
  struct Stretch {
    std::uint64_t end;
    Ranks heard;
  };

  std::size_t capacity_;
  std::size_t taken_ = 0;
  std::uint64_t total_put_ = 0;
  std::uint64_t total_taken_ = 0;
  std::vector<std::byte> bytes_;
  Line<Stretch> stretches_;
};

// The sends to one peer, or the receives from it: only the first that is not done may move.
struct Lane {
  ActionKind kind;
  std::size_t peer;
  Line<std::uint32_t> actions;
  std::uint64_t moved = 0;  // Bytes of the first action.
};

struct Player {
  const Plan* plan = nullptr;
  Memory* memory = nullptr;
  std::vector<std::byte> scratch;
  std::vector<std::uint32_t> waits;
  std::vector<Ranks> heard;  // By action: from whom data had arrived when it ran.
  Ranks needed = 0;          // Who must have been heard from before output is written.
  std::vector<Lane> lanes;
  std::vector<std::uint32_t> local;  // Reduces and copies that are not done.
  std::size_t done = 0;
};

class Game {
 public:
  Game(const PlanCase& c, std::span<const Plan> plans, std::vector<Memory>& memory,
       const Schedule& schedule)
      : case_(c), random_(schedule.seed), n_(plans.size()) {
    links_.assign(n_ * n_, Link(schedule.link_bytes));
    for (std::size_t rank = 0; rank < n_; ++rank)
      players_.push_back(seat(plans[rank], memory, rank));
  }

  std::string play() {
    while (trouble_.empty()) {
      const std::size_t first = random_.below(n_);
      bool moved = false;
      for (std::size_t i = 0; i < n_ && !moved; ++i) moved = move((first + i) % n_);
      if (!moved) break;
    }
    return trouble_.empty() ? ending() : trouble_;
  }

 private:
  // Small operations agree by their data (kAgreeByDataBytes).
  Ranks needed_by(Rank rank) const {
    if (operation_bytes(case_, rank) > collectives::kAgreeByDataBytes) return 0;
    const std::vector<bool> contributes = contributors(case_, rank);
    Ranks needed = 0;
    for (std::size_t peer = 0; peer < n_; ++peer)
      if (contributes[peer]) needed |= Ranks{1} << peer;
    return needed;
  }

  Player seat(const Plan& plan, std::vector<Memory>& memory, std::size_t rank) {
    Player player;
    player.plan = &plan;
    player.memory = &memory[rank];
    player.needed = needed_by(static_cast<Rank>(rank));
    player.scratch.assign(plan.scratch_bytes, static_cast<std::byte>(random_.next() | 1));
    player.heard.assign(plan.actions.size(), Ranks{1} << rank);
    for (std::uint32_t i = 0; i < plan.actions.size(); ++i) {
      const Action& action = plan.actions[i];
      player.waits.push_back(action.wait_count);
      if (action.kind == ActionKind::kReduce || action.kind == ActionKind::kCopy) {
        player.local.push_back(i);
        continue;
      }
      const auto peer = static_cast<std::size_t>(action.peer);
      auto lane = std::find_if(player.lanes.begin(), player.lanes.end(), [&](const Lane& other) {
        return other.kind == action.kind && other.peer == peer;
      });
      if (lane == player.lanes.end()) {
        player.lanes.push_back({action.kind, peer, {}});
        lane = player.lanes.end() - 1;
      }
      lane->actions.push_back(i);
    }
    return player;
  }

  // Lets one rank do one thing, chosen at random among those it can do; false if there is none.
  bool move(std::size_t rank) {
    Player& player = players_[rank];
    const std::size_t choices = player.lanes.size() + 1;
    const std::size_t first = random_.below(choices);
    for (std::size_t i = 0; i < choices; ++i) {
      const std::size_t choice = (first + i) % choices;
      const bool moved =
          choice == player.lanes.size() ? compute(rank) : transfer(rank, player.lanes[choice]);
      if (moved) return true;
    }
    return false;
  }

  bool compute(std::size_t rank) {
    Player& player = players_[rank];
    if (player.local.empty()) return false;
    const std::size_t first = random_.below(player.local.size());
    for (std::size_t i = 0; i < player.local.size(); ++i) {
      const std::size_t choice = (first + i) % player.local.size();
      const std::uint32_t index = player.local[choice];
      if (player.waits[index] > 0) continue;
      player.local.erase(player.local.begin() + static_cast<std::ptrdiff_t>(choice));
      run(rank, index);
      complete(player, index);
      return true;
    }
    return false;
  }

  bool transfer(std::size_t rank, Lane& lane) {
    Player& player = players_[rank];
    if (lane.actions.empty() || player.waits[lane.actions.front()] > 0) return false;
    const std::uint32_t index = lane.actions.front();
    const Action& action = player.plan->actions[index];
    const bool is_send = lane.kind == ActionKind::kSend;
    Link& link = links_[is_send ? rank * n_ + lane.peer : lane.peer * n_ + rank];
    const std::uint64_t left = action.bytes - lane.moved;
    std::uint64_t size = std::min<std::uint64_t>(left, is_send ? link.room() : link.queued());
    if (size == 0) return false;
    if (random_.below(2) == 0) size = 1 + random_.below(size);
    std::byte* at = address(player, action.at) + lane.moved;
    if (is_send) {
      link.put(at, size, player.heard[index]);
    } else {
      link.take(at, size, player.heard[index]);
    }
    lane.moved += size;
    if (lane.moved < action.bytes) return true;
    lane.moved = 0;
    lane.actions.pop_front();
    if (!lane.actions.empty()) player.heard[lane.actions.front()] |= player.heard[index];
    complete(player, index);
    return true;
  }

  void run(std::size_t rank, std::uint32_t index) {
    Player& player = players_[rank];
    const Action& action = player.plan->actions[index];
    std::vector<const std::byte*> sources;
    for (std::uint32_t i = 0; i < action.source_count; ++i) {
      sources.push_back(address(player, player.plan->sources[action.first_source + i]));
    }
    std::byte* into = address(player, action.at);
    check_agreement(rank, index, into == sources.front());
    if (action.kind == ActionKind::kCopy) {
      if (into != sources.front()) std::copy_n(sources.front(), action.bytes, into);
      return;
    }
    const bool divides = action.is_final && case_.reduce_op == ReduceOp::kAvg;
    kernels::reduce(into, sources, action.bytes / item_bytes(case_.dtype),
                    {.dtype = case_.dtype,
                     .op = case_.reduce_op,
                     .fold = action.fold,
                     .divisor = divides ? static_cast<std::uint32_t>(n_) : 1u});
  }

  void check_agreement(std::size_t rank, std::uint32_t index, bool is_onto_itself) {
    const Action& action = players_[rank].plan->actions[index];
    if (action.at.place != Place::kOutput) return;
    if (action.kind == ActionKind::kCopy && is_onto_itself) return;
    const Ranks missing = players_[rank].needed & ~players_[rank].heard[index];
    if (missing == 0) return;
    trouble_ = str("rank ", rank, " writes output in action ", index,
                   " before it has heard from rank ", std::countr_zero(missing));
  }

  void complete(Player& player, std::uint32_t index) {
    const Action& action = player.plan->actions[index];
    ++player.done;
    for (std::uint32_t i = 0; i < action.dependent_count; ++i) {
      const std::uint32_t dependent = player.plan->dependents[action.first_dependent + i];
      --player.waits[dependent];
      player.heard[dependent] |= player.heard[index];
    }
  }

  static std::byte* address(Player& player, Slice slice) {
    switch (slice.place) {
      case Place::kInput:
        return player.memory->bytes.data() + player.memory->input_at + slice.offset_bytes;
      case Place::kOutput:
        return player.memory->bytes.data() + player.memory->output_at + slice.offset_bytes;
      case Place::kScratch: return player.scratch.data() + slice.offset_bytes;
    }
    return nullptr;
  }

  std::string ending() const {
    for (std::size_t rank = 0; rank < n_; ++rank) {
      const Player& player = players_[rank];
      if (player.done < player.plan->actions.size()) {
        return str("everybody waits: rank ", rank, " did ", player.done, " of ",
                   player.plan->actions.size(), " actions");
      }
    }
    for (std::size_t link = 0; link < links_.size(); ++link) {
      if (links_[link].queued() == 0) continue;
      return str("rank ", link % n_, " left ", links_[link].queued(), " bytes from rank ",
                 link / n_, " unread");
    }
    return "";
  }

  const PlanCase& case_;
  SplitMix64 random_;
  std::size_t n_;
  std::vector<Link> links_;  // From rank i to rank j at i * n + j.
  std::vector<Player> players_;
  std::string trouble_;
};

}  // namespace

std::string play(const PlanCase& c, std::span<const Plan> plans, std::vector<Memory>& memory,
                 const Schedule& schedule) {
  return Game(c, plans, memory, schedule).play();
}

}  // namespace gradring::testing
