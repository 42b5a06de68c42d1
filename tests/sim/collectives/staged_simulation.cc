#include "sim/collectives/staged_simulation.h"

#include <deque>
#include <map>
#include <vector>

#include "base/text.h"
#include "collectives/device/staged_flow.h"
#include "sim/dice.h"

namespace gradring::sim {
namespace {

using collectives::has_come;
using collectives::StagedFlow;
using collectives::Step;
using collectives::StepKind;
using collectives::Ticket;

constexpr int kTurns = 200'000;

// What a round's data are on their way, so that any mix-up shows.
std::uint64_t input_of(std::uint64_t work, std::uint32_t round) {
  return work * 1000 + round + 1;
}
std::uint64_t reduced(std::uint64_t value) {
  return value * 3 + 7;
}

struct Slot {
  std::uint64_t value = 0;
  std::uint32_t writers = 0;  // Copies and collectives that are in the middle of it.
  std::uint32_t readers = 0;
  Ticket ready = 0;  // Words.
  Ticket sent = 0;
  std::uint64_t freed = 0;  // Which recording of the event is the latest; 0: none.
};

struct Job {
  std::uint32_t rounds = 0;
  Ticket first = 0;
  bool has_begun = false;
  bool is_given_up = false;
  bool stop = false;
  bool has_ended = false;
  std::uint64_t downs = 0;  // As Slot::freed.
  std::uint32_t sent = 0;
  std::vector<std::uint64_t> output;
};

struct Queued {
  Step step;
  std::uint64_t awaited = 0;    // The recording of an event that it waits for.
  std::uint64_t recording = 0;  // Its own.
};

struct Stream {
  std::deque<Queued> steps;
  bool is_in_copy = false;
};

class Play {
 public:
  explicit Play(const StagedScenario& scenario)
      : scenario_(scenario),
        dice_(scenario.seed),
        flow_(scenario.slots, scenario.waits_on_memory),
        slots_(scenario.slots) {}

  StagedOutcome run();

 private:
  void complain(const std::string& text) {
    if (outcome_.complaint.empty()) outcome_.complaint = text;
  }
  Slot& slot_of(Ticket ticket) { return slots_[flow_.slot_of(ticket)]; }
  bool is_user_in_the_middle() const { return !issuing_.empty(); }

  void submit();
  void put_next();
  void put(const Step& step);
  void turn_of(Stream& stream);
  void finish(Stream& stream);
  bool may_begin(const Queued& queued);
  void begin_copy(const Step& step);
  void end_copy(const Step& step);
  void turn_of_network();
  void give_up(std::uint64_t work);
  void give_up_someone();
  void check_end();

  const StagedScenario& scenario_;
  Dice dice_;
  StagedFlow flow_;
  std::vector<Slot> slots_;
  std::map<std::uint64_t, Job> jobs_;
  std::deque<std::uint64_t> queue_;  // Of the communicator.
  std::deque<Step> issuing_;         // What a user's thread has in hand.
  Stream down_;
  Stream up_;
  std::uint64_t recordings_ = 0;
  std::map<std::uint64_t, bool> passed_;
  std::uint64_t submitted_ = 0;
  bool is_in_network_ = false;
  bool is_broken_ = false;
  std::uint64_t breaks_at_ = UINT64_MAX;  // Rounds through the network.
  std::uint64_t rounds_done_ = 0;
  StagedOutcome outcome_;
};

void Play::submit() {
  const std::uint64_t work = ++submitted_;
  Job& job = jobs_[work];
  job.rounds = 1 + static_cast<std::uint32_t>(dice_.below(scenario_.most_rounds));
  job.output.assign(job.rounds, 0);
  if (is_broken_) {  // The communicator refuses it.
    job.is_given_up = job.has_ended = true;
    return;
  }
  queue_.push_back(work);
  if (dice_.percent(scenario_.cancel_percent)) give_up(work);
  if (job.is_given_up) return;
  std::vector<Step> steps;
  job.first = flow_.begin(work, job.rounds, steps);
  job.has_begun = true;
  issuing_.insert(issuing_.end(), steps.begin(), steps.end());
}

void Play::put_next() {
  const Step step = issuing_.front();
  issuing_.pop_front();
  put(step);
}

// As StagedLane::carry_out.
void Play::put(const Step& step) {
  Slot& slot = slot_of(step.ticket);
  Job& job = jobs_[step.work];
  Queued queued{step};
  switch (step.kind) {
    case StepKind::kStop: job.stop = true; return;
    case StepKind::kSetSent:
      if (has_come(slot.sent, step.ticket)) complain("a word went back");
      slot.sent = step.ticket;
      return;
    case StepKind::kAwaitSlot: queued.awaited = slot.freed; break;
    case StepKind::kSignalDown: queued.recording = job.downs = ++recordings_; break;
    case StepKind::kFreeSlot: queued.recording = slot.freed = ++recordings_; break;
    case StepKind::kAwaitDowns: queued.awaited = job.downs; break;
    default: break;
  }
  const bool goes_down = step.kind == StepKind::kAwaitSlot || step.kind == StepKind::kDown ||
                         step.kind == StepKind::kSignalDown;
  (goes_down ? down_ : up_).steps.push_back(queued);
}

bool Play::may_begin(const Queued& queued) {
  if (queued.awaited != 0 && !passed_[queued.awaited]) return false;
  return queued.step.kind != StepKind::kAwaitSent ||
         has_come(slot_of(queued.step.ticket).sent, queued.step.ticket);
}

void Play::turn_of(Stream& stream) {
  if (stream.is_in_copy) return finish(stream);
  if (stream.steps.empty() || !may_begin(stream.steps.front())) return;
  const Step step = stream.steps.front().step;
  if (step.kind == StepKind::kDown || step.kind == StepKind::kUp) {
    begin_copy(step);
    stream.is_in_copy = true;
    return;
  }
  finish(stream);
}

void Play::begin_copy(const Step& step) {
  Slot& slot = slot_of(step.ticket);
  if (step.kind == StepKind::kDown) {
    // A stopped work's rounds may go up while they come down: nobody gets to see that.
    const bool is_read = slot.readers > 0 && !jobs_[step.work].stop;
    if (slot.writers > 0 || is_read) complain("a slot is filled while it is in use");
    slot.value = UINT64_MAX;  // Neither the old nor the new.
    ++slot.writers;
    return;
  }
  const Job& job = jobs_[step.work];
  if (slot.writers > 0 && !job.stop) complain("a slot goes up while it is written");
  ++slot.readers;
}

void Play::end_copy(const Step& step) {
  Slot& slot = slot_of(step.ticket);
  Job& job = jobs_[step.work];
  if (step.kind == StepKind::kDown) {
    if (job.has_ended) complain("a work's input is read after its end");
    slot.value = input_of(step.work, step.round);
    --slot.writers;
    return;
  }
  --slot.readers;
  if (job.has_ended) complain("a work's output is written after its end");
  if (scenario_.waits_on_memory && job.stop) return;  // The kernel has seen the word.
  if (step.round >= job.sent) complain("what was never reduced goes up");
  job.output[step.round] = slot.value;
}

void Play::finish(Stream& stream) {
  const Queued done = stream.steps.front();
  stream.steps.pop_front();
  if (stream.is_in_copy) end_copy(done.step);
  stream.is_in_copy = false;
  if (done.recording != 0) passed_[done.recording] = true;
  if (done.step.kind == StepKind::kSignalDown) slot_of(done.step.ticket).ready = done.step.ticket;
  if (done.step.kind == StepKind::kEnd) jobs_[done.step.work].has_ended = true;
}

// The thread that drives the communicator: one round at a time.
void Play::turn_of_network() {
  if (queue_.empty()) return;
  const std::uint64_t work = queue_.front();
  Job& job = jobs_[work];
  if (job.is_given_up || (is_broken_ && !is_in_network_)) {
    // Without waits on memory it takes the lock of whoever puts steps into streams.
    if (!scenario_.waits_on_memory && is_user_in_the_middle()) return;
    if (!job.is_given_up) give_up(work);
    queue_.pop_front();
    return;
  }
  if (!job.has_begun) return;
  const Ticket ticket = job.first + job.sent;
  Slot& slot = slot_of(ticket);
  if (!is_in_network_) {
    const bool is_down =
        scenario_.waits_on_memory ? has_come(slot.ready, ticket) : slot.ready == ticket;
    if (!is_down) return;
    if (slot.readers > 0 || slot.writers > 0) complain("the network gets a slot that is in use");
    if (slot.value != input_of(work, job.sent)) complain("the network gets other data");
    ++slot.writers;
    is_in_network_ = true;
    return;
  }
  if (!scenario_.waits_on_memory && is_user_in_the_middle()) return;
  is_in_network_ = false;
  --slot.writers;
  if (rounds_done_++ == breaks_at_) {
    slot.value = UINT64_MAX;
    is_broken_ = true;
    return;
  }
  slot.value = reduced(slot.value);
  std::vector<Step> steps;
  flow_.sent(work, job.sent++, steps);
  for (const Step& step : steps) put(step);
  if (job.sent == job.rounds) queue_.pop_front();
}

void Play::give_up(std::uint64_t work) {
  Job& job = jobs_[work];
  job.is_given_up = true;
  if (!job.has_begun) {
    job.has_ended = true;
    return;
  }
  std::vector<Step> steps;
  flow_.fail(work, steps);
  for (const Step& step : steps) put(step);
}

// A work that waits for its turn in the communicator.
void Play::give_up_someone() {
  if (queue_.size() < 2 || (!scenario_.waits_on_memory && is_user_in_the_middle())) return;
  const std::uint64_t work = queue_[1 + dice_.below(queue_.size() - 1)];
  if (!jobs_[work].is_given_up && dice_.percent(scenario_.cancel_percent)) give_up(work);
}

void Play::check_end() {
  if (!down_.steps.empty() || !up_.steps.empty()) complain("a stream hangs");
  if (!queue_.empty() || !flow_.is_idle()) complain("a work is still awaited");
  for (const auto& [work, job] : jobs_) {
    if (!job.has_ended) complain(str("work ", work, " never ends"));
    const bool is_whole = !job.is_given_up;
    ++(is_whole ? outcome_.finished : outcome_.stopped);
    for (std::uint32_t round = 0; round < job.rounds; ++round) {
      const std::uint64_t right = reduced(input_of(work, round));
      if (job.output[round] != right && (is_whole || job.output[round] != 0))
        complain(str("work ", work, ", round ", round, ": ", job.output[round], ", not ", right));
    }
  }
}

StagedOutcome Play::run() {
  if (scenario_.breaks)
    breaks_at_ = dice_.below(scenario_.works * (scenario_.most_rounds + 1) / 2 + 1);
  // Chance favours one party for a while: far ahead and far behind both come about.
  std::uint64_t favourite = 0;
  for (int turn = 0; turn < kTurns && outcome_.complaint.empty(); ++turn) {
    if (turn % 16 == 0) favourite = dice_.below(6);
    const std::uint64_t party = dice_.percent(50) ? favourite : dice_.below(6);
    if (party == 0 && !is_user_in_the_middle() && submitted_ < scenario_.works) submit();
    if (party <= 1 && is_user_in_the_middle()) put_next();
    if (party == 2) turn_of(down_);
    if (party == 3) turn_of(up_);
    if (party == 4) turn_of_network();
    if (party == 5) give_up_someone();
    if (down_.is_in_copy && up_.is_in_copy && is_in_network_) ++outcome_.overlapped;
    if (submitted_ == scenario_.works && queue_.empty() && !is_user_in_the_middle() &&
        down_.steps.empty() && up_.steps.empty())
      break;
  }
  check_end();
  return outcome_;
}

}  // namespace

StagedScenario staged_scenario_of(std::uint64_t seed) {
  Dice dice(seed * 7919 + 1);
  StagedScenario scenario;
  scenario.seed = seed;
  scenario.slots = 1 + static_cast<std::uint32_t>(dice.below(8));
  scenario.waits_on_memory = dice.percent(60);
  scenario.works = 1 + static_cast<std::uint32_t>(dice.below(6));
  scenario.most_rounds = 1 + static_cast<std::uint32_t>(dice.below(30));
  scenario.breaks = dice.percent(50);
  scenario.cancel_percent = dice.percent(20) ? 30 : 0;
  return scenario;
}

StagedOutcome simulate_staged(const StagedScenario& scenario) {
  return Play(scenario).run();
}

}  // namespace gradring::sim
