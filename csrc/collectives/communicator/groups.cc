// Communicators made from a communicator: parts of it, and its survivors.
#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "collectives/communicator/communicator.h"
#include "transport/links/forks.h"
#include "transport/links/interrupts.h"

namespace gradring::collectives {
namespace {

constexpr std::size_t kRanksShown = 16;
constexpr std::size_t kNameShown = 64;
constexpr Millis kOwnEnd{1000};  // What this rank has ended before it shrinks ends elsewhere too.

// As errors show it: it goes into every heartbeat, so it is kept short.
std::string describe_subgroup(const std::vector<Rank>& ranks, const std::string& name) {
  std::string text = "subgroup([";
  for (std::size_t i = 0; i < std::min(ranks.size(), kRanksShown); ++i)
    text += str(i == 0 ? "" : ", ", ranks[i]);
  if (ranks.size() > kRanksShown) text += str(", ... ", ranks.size(), " ranks");
  std::size_t shown = std::min(name.size(), kNameShown);
  while (shown < name.size() && (static_cast<unsigned char>(name[shown]) & 0xc0) == 0x80) --shown;
  return str(text, "], '", name.substr(0, shown), shown < name.size() ? "..." : "", "')");
}

std::uint64_t hash_of_name(const std::string& name) {
  std::uint64_t hash = name.size();
  for (const char byte : name)
    hash = transport::derive_id(hash, static_cast<unsigned char>(byte), 0);
  return hash;
}

// "": not known yet.
std::string who_is_awaited(const transport::Group& group) {
  const wire::ShrinkWait wait = group.shrink_awaits();
  if (wait.missing.empty()) return "";
  std::string text;
  for (const Rank rank : wait.missing) text += str(text.empty() ? "; rank " : ", ", rank);
  if (wait.count > wait.missing.size())
    text += str(" and ", wait.count - wait.missing.size(), " more");
  return str(text, " had not");
}

}  // namespace

std::shared_ptr<Communicator> Communicator::split(std::int64_t color, std::int64_t key,
                                                  Millis timeout) {
  const auto ranks = static_cast<std::size_t>(world_size());
  std::vector<std::array<std::int64_t, 2>> entries(ranks);
  entries[static_cast<std::size_t>(rank_)] = {color, key};
  Operation exchange;
  exchange.request.op = OpKind::kAllGather;
  exchange.request.dtype = DType::kInt64;
  exchange.request.count = 2 * ranks;
  exchange.step_of = StepOf::kSplit;
  exchange.input = reinterpret_cast<const std::byte*>(&entries[static_cast<std::size_t>(rank_)]);
  exchange.output = reinterpret_cast<std::byte*>(entries.data());
  run(exchange, timeout);
  const std::uint64_t nth = ++splits_;
  if (color < 0) return nullptr;
  std::vector<Rank> group_ranks;
  for (Rank rank = 0; rank < world_size(); ++rank)
    if (entries[static_cast<std::size_t>(rank)][0] == color) group_ranks.push_back(rank);
  std::stable_sort(group_ranks.begin(), group_ranks.end(), [&](Rank a, Rank b) {
    return entries[static_cast<std::size_t>(a)][1] < entries[static_cast<std::size_t>(b)][1];
  });
  for (Rank& rank : group_ranks) rank = group_->members[static_cast<std::size_t>(rank)];
  return make_child(transport::derive_id(group_->id, nth, static_cast<std::uint64_t>(color)),
                    std::move(group_ranks));
}

std::shared_ptr<Communicator> Communicator::subgroup(std::vector<Rank> ranks,
                                                     const std::string& name) {
  world_->check_process();
  if (group_->is_failed()) {
    const Failure failure = group_->failure();
    throw Closed(str("subgroup: this communicator is closed since: ", failure.text), failure);
  }
  std::string made_by = describe_subgroup(ranks, name);
  std::set<Rank> seen;
  for (Rank& rank : ranks) {
    if (rank < 0 || rank >= world_size() || !seen.insert(rank).second)
      throw InvalidArgument(
          str("subgroup: rank ", rank, " is listed twice or not one of 0..", world_size() - 1));
    rank = group_->members[static_cast<std::size_t>(rank)];
  }
  if (!seen.contains(rank_))
    throw InvalidArgument(str("subgroup: rank ", rank_, " is not one of the ranks listed"));
  return make_child(transport::derive_id(group_->id, ~std::uint64_t{2}, hash_of_name(name)),
                    std::move(ranks), std::move(made_by));
}

std::unique_ptr<Level> Communicator::level(std::vector<Rank> ranks) {
  const std::uint64_t nth = ++splits_;
  const auto name = static_cast<std::uint64_t>(ranks.at(0));
  return std::make_unique<Level>(world_, *group_, nth, name, std::move(ranks));
}

std::shared_ptr<Communicator> Communicator::shrink(Millis timeout) {
  world_->check_process();
  if (world_size() == 1) throw InvalidArgument("shrink: a communicator of one has nobody to lose");
  if (has_shrunk_)
    throw Closed("shrink: this communicator was shrunk already; use the one that it returned");
  // The others count this rank as one that left: they would not wait for it.
  if (is_leaving_.load())
    throw Closed("shrink: close() was called on this communicator; there is nothing to go on with");
  const Time deadline = Clock::now() + timeout;
  const Failure cause{ErrorKind::kClosed, -1,
                      "this communicator was shrunk: use the one that shrink() returned, or call "
                      "shrink() again where it returned none"};
  if (!group_->is_failed()) {
    calls_out_at_ = Clock::now() + kOwnEnd;
    group_->fail(cause);
  }
  world_->request_shrink({group_->id, group_->members});
  while (true) {
    if (auto survivors = group_->survivors()) {
      if (std::find(survivors->begin(), survivors->end(), world_->rank()) == survivors->end())
        throw PeerLost(world_->rank(), str("shrink: ", world_->describe(world_->rank()),
                                           " was given up by the others, who have gone on "
                                           "without it"));
      auto child =
          make_child(transport::derive_id(group_->id, ~std::uint64_t{0}, 0), std::move(*survivors));
      child->can_grow_ = can_grow_;
      has_shrunk_ = true;  // A second one would have the same name.
      return child;
    }
    // Whoever is still in an operation here may have all that it needs, and then comes by itself.
    // Else it must be called out of it, or the survivors would wait for that rank.
    if (calls_out_at_ && Clock::now() >= *calls_out_at_) {
      world_->report({group_->id, seq_, world_->rank(), cause});
      calls_out_at_.reset();
    }
    if (Clock::now() >= deadline)
      throw TimedOut(str("shrink: not all living ranks called it within ",
                         seconds_between(Time{}, Time{timeout}), " s", who_is_awaited(*group_),
                         "; call it again to go on waiting"));
    std::this_thread::sleep_for(Millis{1});
    transport::run_interrupt_check();
  }
}

std::shared_ptr<Communicator> Communicator::make_child(std::uint64_t id, std::vector<Rank> members,
                                                       std::string made_by) {
  return transport::make_here<Communicator>(
      world_, world_->make_group(id, std::move(members), std::move(made_by)), recorder_);
}

}  // namespace gradring::collectives
