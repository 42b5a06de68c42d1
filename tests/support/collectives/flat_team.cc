#include "support/collectives/flat_team.h"

#include <unistd.h>

#include <thread>
#include <utility>

#include "base/error.h"

namespace gradring::testing {
namespace {

Call call_of(const PlanCase& c) {
  Call call;
  call.op = c.op;
  call.dtype = c.dtype;
  call.reduce_op = c.reduce_op;
  call.root = c.op == OpKind::kBroadcast || c.op == OpKind::kReduce ? c.root : -1;
  call.count = c.count;
  call.counts_hash = c.has_uneven_counts ? 1 : 0;
  return call;
}

}  // namespace

FlatTeam::FlatTeam(Rank ranks, Rank processors, bool core_lines_are_slow)
    : members_(static_cast<std::size_t>(ranks)) {
  const std::size_t bytes = collectives::Flat::memory_bytes(ranks);
  const auto memory = transport::SharedMemory::create(bytes);
  collectives::Flat::lay_out(memory, ranks, processors, core_lines_are_slow);
  std::vector<Rank> world_ranks;
  for (Rank rank = 0; rank < ranks; ++rank) world_ranks.push_back(kFirstWorldRank + rank);
  for (Rank rank = 0; rank < ranks; ++rank) {
    Member& member = members_[static_cast<std::size_t>(rank)];
    member.group = std::make_unique<transport::Group>(1, world_ranks);
    member.flat = std::make_unique<collectives::Flat>(
        transport::SharedMemory::attach(transport::Fd(::dup(memory.fd())), bytes), *member.group,
        rank);
  }
}

void FlatTeam::call(Rank rank, const PlanCase& c, Memory& memory, Millis timeout) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  const collectives::Request request = c.requests()[static_cast<std::size_t>(rank)];
  transport::Idle idle(*member.group, timeout, false);
  member.flat->run(request, call_of(c), ++member.seq, memory.bytes.data() + memory.input_at,
                   memory.bytes.data() + memory.output_at, idle);
}

void FlatTeam::leave(Rank rank, Leaving how) {
  for (Rank other = 0; other < ranks(); ++other)
    if (other != rank && how != Leaving::kFlag)
      group(other).mark_left(kFirstWorldRank + rank, "it closed");
  if (how != Leaving::kGoodbye) flat(rank).leave();
}

std::vector<std::exception_ptr> FlatTeam::run(const std::function<void(Rank)>& as_rank) {
  std::vector<std::exception_ptr> errors(members_.size());
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < ranks(); ++rank) {
    threads.emplace_back([&as_rank, rank, &error = errors[static_cast<std::size_t>(rank)]] {
      try {
        as_rank(rank);
      } catch (...) {
        error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

Thrown thrown_by(const std::exception_ptr& error) {
  if (error == nullptr) return {};
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost& lost) {
    return {lost.kind(), lost.rank, lost.what(), false};
  } catch (const Error& other) {
    return {other.kind(), -1, other.what(), false};
  } catch (const transport::DeadlinePassed&) {
    return {ErrorKind::kNone, -1, "deadline passed", true};
  }
}

}  // namespace gradring::testing
