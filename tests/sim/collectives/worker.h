// Worker: one rank's user: it makes the scenario's calls one after the other on simulated links, as
// Communicator and Engine would, and ends with all results right or with one error. What find_cause
// does by waiting, it does turn by turn.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/engine/run.h"
#include "sim/collectives/monitor.h"
#include "sim/collectives/scenario.h"

namespace gradring::sim {

inline constexpr std::uint64_t kFirstGroup = 1;  // As in collectives/communicator/communicator.cc.

// One collective with everybody's memory before it and the right results after it.
struct Exercise {
  testing::PlanCase call;
  std::vector<testing::Memory> memory;
  std::vector<reference::Buffer> expected;

  Exercise(const testing::PlanCase& c, std::uint64_t seed)
      : call(c), memory(random_memory(c, seed)), expected(expected_outputs(c, memory)) {}
};

// The links of one communicator, made when first needed, as transport::Mesh does.
class Wiring final : public transport::Peers {
 public:
  Wiring(Rank rank, std::shared_ptr<transport::Group> group, const Scenario& scenario,
         Network& network, Monitor& monitor);
  transport::Link* link(Rank peer) override;
  void hang_up();  // What was sent still arrives.

 private:
  struct Slot {
    std::unique_ptr<transport::Link> link;
    Attempt* attempt = nullptr;
  };
  transport::MemoryScript script_for(Rank peer) const;

  Rank rank_;  // World rank, as are all that follow from the group's members.
  std::shared_ptr<transport::Group> group_;
  const Scenario& scenario_;
  Network& network_;
  Monitor& monitor_;
  std::vector<Slot> slots_;
};

class Worker {
 public:
  enum class State : std::uint8_t {
    kPausing,
    kRunning,
    kVerdict,  // A link broke: waits for the monitor to say why.
    kEcho,     // It has reported: waits for the coordinator's wording.
    kShrinking,
    kDone,
    kFailed,
    kLeft,
  };

  // `right` and `wrong` outlive the worker. `wrong`: what it calls instead of one of them, or null.
  Worker(Rank rank, const Scenario& scenario, const std::vector<Exercise>& right,
         const Exercise* wrong, Network& network, Monitor& monitor, Trace& trace);

  bool step();  // One turn. True if something moved.
  void leave();
  Time next_event() const;

  State state() const { return state_; }
  bool is_over() const {
    return state_ == State::kDone || state_ == State::kFailed || state_ == State::kLeft;
  }
  const Failure& failure() const { return failure_; }
  const std::string& complaint() const { return complaint_; }  // A promise was broken.
  std::size_t operation() const { return operation_; }
  Time began() const { return began_; }
  std::uint64_t seq() const { return seq_; }
  const Call& call() const { return call_; }
  // It has been in one wait, and said so in its heartbeats, since then at least.
  bool waits_since(Time time) const {
    return state_ == State::kRunning && deadline_ &&
           *deadline_ - Millis{scenario_.operation_timeout} < time;
  }
  // Whom it went on with after a loss.
  const std::vector<Rank>& survivors() const { return survivors_; }

 private:
  const Exercise& exercise() const;
  bool is_wrong() const;
  void join(std::uint64_t id, std::vector<Rank> members);
  void begin();
  void start();
  bool turn();
  void complete();
  void handle(const std::exception_ptr& error);
  void await_verdict(Failure mine, Millis longest);
  void report();
  void fail(const Failure& failure);
  bool shrink();
  void check_untouched();
  void say_goodbye();
  void move_on(State state, std::string_view why);

  Rank rank_;
  const Scenario& scenario_;
  const std::vector<Exercise>& right_;
  const Exercise* wrong_;
  Network& network_;
  Monitor& monitor_;
  Trace& trace_;
  Dice dice_;

  std::shared_ptr<transport::Group> group_;
  Rank group_rank_ = -1;
  std::optional<Wiring> wiring_;
  std::vector<Rank> survivors_;
  std::optional<Exercise> last_exercise_;  // Of those who went on together.

  State state_ = State::kPausing;
  std::size_t operation_ = 0;
  std::uint64_t seq_ = 0;
  Time began_{};
  Time until_{};  // Pausing, verdict, echo, shrinking.
  testing::Memory memory_;
  Call call_;
  collectives::Plan plan_;
  std::vector<std::byte> scratch_;
  std::optional<collectives::PlanRun> run_;
  std::optional<Time> deadline_;
  Failure failure_;  // Its own, until the group's is final.
  std::string complaint_;
};

}  // namespace gradring::sim
