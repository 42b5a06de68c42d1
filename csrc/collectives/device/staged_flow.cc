#include "collectives/device/staged_flow.h"

#include <algorithm>

#include "base/error.h"

namespace gradring::collectives {

void StagedFlow::issue_down(Work& work, std::vector<Step>& steps) const {
  const std::uint32_t round = work.issued++;
  const Ticket ticket = work.first + round;
  steps.push_back({StepKind::kAwaitSlot, work.id, round, ticket});
  steps.push_back({StepKind::kDown, work.id, round, ticket});
  steps.push_back({StepKind::kSignalDown, work.id, round, ticket});
}

void StagedFlow::issue_up(const Work& work, std::uint32_t round, std::vector<Step>& steps) const {
  const Ticket ticket = work.first + round;
  if (waits_on_memory_) steps.push_back({StepKind::kAwaitSent, work.id, round, ticket});
  steps.push_back({StepKind::kUp, work.id, round, ticket});
  steps.push_back({StepKind::kFreeSlot, work.id, round, ticket});
  if (round + 1 < work.rounds) return;
  // Where the work is stopped it goes up before it has come down.
  if (waits_on_memory_) steps.push_back({StepKind::kAwaitDowns, work.id, round, ticket});
  steps.push_back({StepKind::kEnd, work.id, round, ticket});
}

// Without waits on memory: as far as there are slots whose round has been put on its way up.
void StagedFlow::issue_more(std::vector<Step>& steps) {
  if (works_.empty()) return;
  const Ticket oldest = works_.front().first + works_.front().sent;
  for (Work& work : works_)
    while (work.issued < work.rounds && work.first + work.issued - oldest < slots_)
      issue_down(work, steps);
}

Ticket StagedFlow::begin(std::uint64_t work, std::uint32_t rounds, std::vector<Step>& steps) {
  GRADRING_ASSERT(rounds > 0);
  works_.push_back({work, rounds, next_, 0, 0, false});
  next_ += rounds;
  Work& added = works_.back();
  if (!waits_on_memory_) {
    issue_more(steps);
    return added.first;
  }
  for (std::uint32_t round = 0; round < rounds; ++round) {
    issue_down(added, steps);
    issue_up(added, round, steps);
  }
  return added.first;
}

void StagedFlow::sent(std::uint64_t work, std::uint32_t round, std::vector<Step>& steps) {
  GRADRING_ASSERT(!works_.empty());
  Work& front = works_.front();
  GRADRING_ASSERT(front.id == work && front.sent == round);
  ++front.sent;
  if (waits_on_memory_)
    steps.push_back({StepKind::kSetSent, work, round, front.first + round});
  else
    issue_up(front, round, steps);
  if (front.sent == front.rounds) works_.pop_front();
  if (waits_on_memory_)
    release_failed(steps);
  else
    issue_more(steps);
}

// A word that has come to one ticket has come to all before: a stopped work's streams go on when
// the works before it are through.
void StagedFlow::release_failed(std::vector<Step>& steps) {
  while (!works_.empty() && works_.front().has_failed) {
    const Work failed = works_.front();
    works_.pop_front();
    for (std::uint32_t round = failed.sent; round < failed.rounds; ++round)
      steps.push_back({StepKind::kSetSent, failed.id, round, failed.first + round});
  }
}

void StagedFlow::fail(std::uint64_t work, std::vector<Step>& steps) {
  const auto found = std::find_if(works_.begin(), works_.end(),
                                  [&](const Work& known) { return known.id == work; });
  if (found == works_.end()) return;
  if (waits_on_memory_) {
    found->has_failed = true;
    steps.push_back({StepKind::kStop, work, found->sent, found->first + found->sent});
    release_failed(steps);
    return;
  }
  const Work failed = *found;
  works_.erase(found);
  // A slot whose round has gone down and no further is free as soon as that is done; the stream
  // that brings the next one into it is the same.
  const std::uint32_t last = failed.rounds - 1;
  if (failed.issued > failed.sent)
    steps.push_back({StepKind::kAwaitDowns, work, last, failed.first + last});
  steps.push_back({StepKind::kEnd, work, last, failed.first + last});
  issue_more(steps);
}

}  // namespace gradring::collectives
