// find_cause: from what one rank saw of a failure to what happened.
#include <poll.h>

#include "base/error.h"
#include "collectives/communicator/communicator.h"

namespace gradring::collectives {
namespace {

using transport::Group;
using transport::World;

// How long the monitor may take to say what is behind a broken link: a killed process shows within
// milliseconds, a goodbye too.
constexpr Millis kVerdictTime{1500};
// How long the coordinator may take to add who is missing and send our own report back to us.
constexpr Millis kEchoTime{500};

// Returns early when it is known that `leaver` has left: then nobody will fail the group.
bool wait_for_failure(Group& group, Millis time, Rank leaver = -1) {
  const Time deadline = Clock::now() + time;
  while (!group.is_failed()) {
    if (leaver >= 0 && group.left(leaver)) return false;
    const auto left = std::chrono::duration_cast<Millis>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{group.wake_fd(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left, 20)));
    group.clear_wake();
  }
  return true;
}

// Fails the group for everybody and returns what the group then says: the coordinator's wording, if
// it comes in time.
Failure report(World& world, Group& group, std::uint64_t seq, const Failure& failure) {
  wire::Abort abort;
  abort.communicator = group.id;
  abort.seq = seq;
  abort.origin = world.rank();
  abort.failure = failure;
  world.report(abort);
  if (!wait_for_failure(group, kEchoTime)) group.fail(failure);
  return group.failure();
}

Failure from_monitor(Group& group, const std::string& operation, const std::string& progress) {
  Failure failure = group.failure();
  // Another rank's report names the operation already.
  if (failure.text.rfind(operation, 0) != 0) failure.text = str(operation, ": ", failure.text);
  if (failure.kind == ErrorKind::kPeerLost) failure.text += progress;
  return failure;
}

Failure from_link(World& world, Group& group, const LinkClosed& link, std::uint64_t seq,
                  const std::string& operation, const std::string& progress) {
  const Rank peer = group.members[static_cast<std::size_t>(link.peer)];
  if (wait_for_failure(group, kVerdictTime, peer)) return from_monitor(group, operation, progress);
  const auto left = group.left(peer);
  const std::string what = left ? *left : str(world.describe(peer), " closed the connection");
  const Failure failure{
      ErrorKind::kPeerLost, peer,
      str(operation, ": ", what, " after ", link.bytes, " of ", link.expected_bytes, " bytes ",
          link.was_receiving ? "received from it" : "sent to it",
          "; this communicator is closed, see that rank's log")};
  return report(world, group, seq, failure);
}

}  // namespace

Failure find_cause(World& world, Group& group, const std::string& operation, std::uint64_t seq,
                   const std::exception_ptr& error, const std::string& progress, Millis timeout) {
  try {
    std::rethrow_exception(error);
  } catch (const LinkClosed& link) {
    return from_link(world, group, link, seq, operation, progress);
  } catch (const transport::DeadlinePassed&) {
    const Failure failure{ErrorKind::kTimedOut, -1,
                          str(operation, ": not finished within its timeout of ",
                              seconds_between(Time{}, Time{timeout}), " s", progress)};
    return report(world, group, seq, failure);
  } catch (const Interrupted& interrupt) {
    const Failure told{ErrorKind::kPeerLost, world.rank(),
                       str(operation, ": ", world.describe(world.rank()),
                           " was interrupted (Ctrl-C or a signal handler)")};
    wire::Abort abort{group.id, seq, world.rank(), told};
    world.report(abort);
    group.fail(told);
    return Failure::from(interrupt);
  } catch (const PeerLost& lost) {
    if (group.is_failed()) return from_monitor(group, operation, progress);
    if (wait_for_failure(group, kVerdictTime, lost.rank))
      return from_monitor(group, operation, progress);
    const std::string what = group.left(lost.rank).value_or(lost.what());
    return report(world, group, seq, {ErrorKind::kPeerLost, lost.rank, str(operation, ": ", what)});
  } catch (const CallsDiffer& calls) {
    if (group.is_failed()) return from_monitor(group, operation, progress);
    const Rank peer = group.members[static_cast<std::size_t>(calls.peer)];
    return report(world, group, seq,
                  {ErrorKind::kMismatch, -1,
                   str("rank ", world.rank(), " called ", calls.mine, " but rank ", peer,
                       " called ", calls.theirs,
                       "; all ranks must make the same calls in the same order", calls.advice)});
  } catch (const std::exception& other) {
    if (group.is_failed()) return from_monitor(group, operation, progress);
    Failure failure = Failure::from(other);
    // A mismatch text names both calls already.
    if (failure.kind != ErrorKind::kMismatch) failure.text = str(operation, ": ", failure.text);
    if (failure.kind == ErrorKind::kTimedOut) failure.text += progress;
    return report(world, group, seq, failure);
  }
}

}  // namespace gradring::collectives
