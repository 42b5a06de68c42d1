#include "sim/collectives/worker.h"

#include <algorithm>

#include "base/error.h"
#include "collectives/plan/operation.h"

namespace gradring::sim {
namespace {

using collectives::Algorithm;
using collectives::LinkClosed;
using testing::PlanCase;

constexpr std::uint64_t kShrunkGroup = 2;

// As in collectives/communicator/failure.cc.
constexpr Millis kVerdictTime{1500};
constexpr Millis kEchoTime{500};

}  // namespace

Worker::Worker(Rank rank, const Scenario& scenario, const std::vector<Exercise>& right,
               const Exercise* wrong, Network& network, Monitor& monitor, Trace& trace)
    : rank_(rank),
      scenario_(scenario),
      right_(right),
      wrong_(wrong),
      network_(network),
      monitor_(monitor),
      trace_(trace),
      dice_(scenario.seed * 1000 + static_cast<std::uint64_t>(rank)) {
  join(kFirstGroup, scenario.members);
  until_ = network_.now() + dice_.between(Micros{0}, scenario_.longest_pause);
}

void Worker::join(std::uint64_t id, std::vector<Rank> members) {
  group_rank_ =
      static_cast<Rank>(std::find(members.begin(), members.end(), rank_) - members.begin());
  group_ = std::make_shared<transport::Group>(id, std::move(members));
  monitor_.add(group_);
  wiring_.emplace(rank_, group_, scenario_, network_, monitor_);
  seq_ = 0;
}

const Exercise& Worker::exercise() const {
  if (last_exercise_) return *last_exercise_;
  return is_wrong() ? *wrong_ : right_[operation_];
}

bool Worker::is_wrong() const {
  return wrong_ != nullptr && !last_exercise_ && scenario_.wrong_call->operation == operation_;
}

Time Worker::next_event() const {
  switch (state_) {
    case State::kRunning: return deadline_ ? *deadline_ : Time::max();
    case State::kPausing:
    case State::kVerdict:
    case State::kEcho:
    case State::kShrinking: return until_;
    default: return Time::max();
  }
}

bool Worker::step() {
  switch (state_) {
    case State::kPausing:
      if (network_.now() < until_) return false;
      begin();
      return true;
    case State::kRunning: return turn();
    case State::kVerdict:
      if (!group_->is_failed() && network_.now() < until_) return false;
      if (group_->is_failed())
        fail(group_->failure());
      else
        report();
      return true;
    case State::kEcho:
      if (!group_->is_failed() && network_.now() < until_) return false;
      group_->fail(failure_);
      fail(group_->failure());
      return true;
    case State::kShrinking: return shrink();
    default: return false;
  }
}

void Worker::leave() {
  if (is_over()) return;
  group_->fail({ErrorKind::kClosed, -1, "left"});
  move_on(State::kLeft, "leaves");
  say_goodbye();
}

// As Communicator::leave does: its links close before the others hear why.
void Worker::say_goodbye() {
  wiring_->hang_up();
  monitor_.leave();
}

void Worker::begin() {
  began_ = network_.now();
  memory_ = exercise().memory[static_cast<std::size_t>(group_rank_)];
  if (group_->is_failed()) return fail(group_->failure());
  group_->begin_call(++seq_);
  const PlanCase& c = exercise().call;
  const collectives::Request request = c.requests()[static_cast<std::size_t>(group_rank_)];
  collectives::Operation operation;
  operation.request = request;
  call_ = call_of(operation);
  plan_ = agreed_plan(request, c.algorithm);
  start();
  move_on(State::kRunning, str("begins ", describe(call_, seq_), " with ", name(c.algorithm)));
}

void Worker::start() {
  const PlanCase& c = exercise().call;
  scratch_.assign(plan_.scratch_bytes + 64, std::byte{0xEE});
  kernels::Reduction reduction;
  reduction.dtype = c.dtype;
  reduction.op = c.reduce_op;
  reduction.divisor = c.reduce_op == ReduceOp::kAvg ? static_cast<std::uint32_t>(c.world_size) : 1;
  run_.emplace(plan_, call_, seq_, reduction,
               collectives::RunBuffers{memory_.bytes.data() + memory_.input_at,
                                       memory_.bytes.data() + memory_.output_at, scratch_.data()});
  deadline_.reset();
}

bool Worker::turn() {
  try {
    if (run_->advance(*wiring_)) {
      complete();
      return true;
    }
    if (run_->has_moved()) {
      deadline_.reset();
      return true;
    }
    std::vector<transport::Interest> interests;
    run_->interests(*wiring_, interests);
    if (interests.empty()) complaint_ = "a run waits for nothing";
    if (!deadline_) {
      deadline_ = network_.now() + scenario_.operation_timeout;
      group_->publish_call(call_, seq_);
    }
    if (group_->is_failed()) group_->failure().raise();
    if (network_.now() >= *deadline_) throw transport::DeadlinePassed{};
    return false;
  } catch (...) {
    handle(std::current_exception());
    return true;
  }
}

void Worker::complete() {
  group_->end_call();
  const auto index = static_cast<std::size_t>(group_rank_);
  if (!is_wrong() && memory_.output() != exercise().expected[index])
    complaint_ =
        str("operation ", operation_, " (", exercise().call.text(), ") gave a wrong result");
  if (!exercise().call.is_in_place && memory_.input() != exercise().memory[index].input())
    complaint_ = str("operation ", operation_, " changed its input");
  if (last_exercise_ || ++operation_ == right_.size()) {
    operation_ = std::min(operation_, right_.size() - 1);
    move_on(State::kDone, "is done");
    if (scenario_.leaves_when_done || scenario_.shrinks) say_goodbye();
    return;
  }
  until_ = network_.now() + dice_.between(Micros{0}, scenario_.longest_pause);
  move_on(State::kPausing, "pauses");
}

// What collectives::find_cause does, without its waiting.
void Worker::handle(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const LinkClosed& link) {
    const Rank peer = group_->members[static_cast<std::size_t>(link.peer)];
    await_verdict({ErrorKind::kPeerLost, peer, str("rank ", peer, " closed the connection")},
                  group_->left(peer) ? Millis{0} : kVerdictTime);
  } catch (const transport::DeadlinePassed&) {
    failure_ = {ErrorKind::kTimedOut, -1, "not finished in time"};
    report();
  } catch (const PeerLost& lost) {
    await_verdict({ErrorKind::kPeerLost, lost.rank, lost.what()},
                  group_->left(lost.rank) ? Millis{0} : kVerdictTime);
  } catch (const std::exception& other) {
    if (group_->is_failed()) return fail(group_->failure());
    failure_ = Failure::from(other);
    report();
  }
}

void Worker::await_verdict(Failure mine, Millis longest) {
  failure_ = std::move(mine);
  until_ = network_.now() + longest;
  move_on(State::kVerdict, str("asks why: ", failure_.text));
}

void Worker::report() {
  monitor_.report({group_->id, seq_, rank_, failure_});
  until_ = network_.now() + kEchoTime;
  move_on(State::kEcho, str("reports: ", failure_.text));
}

void Worker::fail(const Failure& failure) {
  group_->fail(failure);
  group_->end_call();
  failure_ = failure;
  check_untouched();
  if (scenario_.shrinks && !last_exercise_) {
    monitor_.request_shrink({group_->id, group_->members});
    until_ = network_.now() + scenario_.operation_timeout;
    return move_on(State::kShrinking, str("shrinks after: ", failure.text));
  }
  move_on(State::kFailed, str("failed: ", failure.text));
  if (scenario_.leaves_when_failed) say_goodbye();
}

bool Worker::shrink() {
  if (const auto survivors = group_->survivors()) {
    if (std::find(survivors->begin(), survivors->end(), rank_) == survivors->end()) {
      failure_ = {ErrorKind::kPeerLost, rank_, "the others have gone on without this rank"};
      move_on(State::kFailed, "was not waited for");
      return true;
    }
    survivors_ = *survivors;
    PlanCase c{.world_size = static_cast<Rank>(survivors_.size()), .count = 100};
    last_exercise_.emplace(c, scenario_.seed);
    join(kShrunkGroup, survivors_);
    until_ = network_.now();
    move_on(State::kPausing, str("goes on with ", survivors_.size()));
    return true;
  }
  if (network_.now() < until_) return false;
  failure_ = {ErrorKind::kTimedOut, -1, "shrink: not all living ranks called it"};
  move_on(State::kFailed, "cannot shrink");
  return true;
}

// A reduction that finds a mismatch has reduced nothing (promise P3).
void Worker::check_untouched() {
  if (failure_.kind != ErrorKind::kMismatch || last_exercise_ || !scenario_.wrong_call) return;
  if (scenario_.wrong_call->operation != operation_ || !collectives::reduces(exercise().call.op))
    return;
  if (memory_.bytes != exercise().memory[static_cast<std::size_t>(group_rank_)].bytes)
    complaint_ = str("operation ", operation_, " (", exercise().call.text(),
                     ") changed the user's memory although the calls did not match");
}

void Worker::move_on(State state, std::string_view why) {
  state_ = state;
  trace_.note(network_.now(), rank_, why);
}

}  // namespace gradring::sim
