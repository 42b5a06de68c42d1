// The saver: takes checkpoints while the others push, and has each one judged.
#include "base/text.h"
#include "ps/client/cut.h"
#include "sim/ps/world.h"

namespace gradring::sim {
namespace {

constexpr Millis kFreezeTime{1500};
constexpr int kMostAttempts = 6;

class Saver final : public PsProgram {
 public:
  Saver(PsClient& client, PsWorld& world) : client_(client), world_(world) {}

  bool is_over() const override {
    return phase_ == Phase::kPause && (attempts_ >= kMostAttempts || world_.still_going.empty());
  }

  void step() override {
    if (phase_ == Phase::kPause) {
      if (is_over() || client_.now() < resumes_) return;
      begin();
      return;
    }
    if (!call_->is_done()) return;
    if (!world_.has_succeeded(client_, *call_)) {
      if (phase_ == Phase::kThaw || phase_ == Phase::kJob) return pause();
      return ask(Phase::kThaw, testing::thaw(cut_), false);
    }
    go_on();
  }

 private:
  enum class Phase : std::uint8_t { kPause, kFreeze, kAdvance, kCut, kJob, kThaw };

  void begin() {
    ++attempts_;
    cut_ = world_.dice.any();
    world_.ledger.settle();
    done_before_ = world_.ledger.done();
    ask(Phase::kFreeze, testing::freeze(cut_, kFreezeTime), false);
  }

  void ask(Phase phase, const testing::Request& request, bool may_wait) {
    phase_ = phase;
    call_ = client_.submit_to_all(str("checkpoint ", attempts_, ": ", name(request.header.type)),
                                  request, may_wait);
  }

  void pause() {
    phase_ = Phase::kPause;
    resumes_ = client_.now() + world_.dice.any_magnitude(Micros{300'000});
  }

  void go_on() {
    switch (phase_) {
      case Phase::kFreeze: return advance();
      case Phase::kAdvance:
        for (const auto& answer : call_->answers())
          if (!answer.payload.empty()) return ask(Phase::kThaw, testing::thaw(cut_), false);
        return ask(Phase::kCut, testing::cut(cut_, "{}"), false);
      case Phase::kCut: return ask(Phase::kJob, testing::job(cut_), true);
      case Phase::kJob:
        ++world_.cuts_taken;
        world_.check_cut(cut_, done_before_);
        return pause();
      default: return pause();
    }
  }

  void advance() {
    std::vector<std::vector<ps::Position>> positions;
    for (const auto& answer : call_->answers())
      positions.push_back(ps::decode_positions(answer.payload));
    const auto targets = ps::targets_of(positions);
    std::vector<Addressed> requests;
    for (std::uint32_t shard = 0; shard < client_.shards(); ++shard)
      requests.push_back({shard, testing::advance(cut_, Millis{1000}, targets[shard])});
    phase_ = Phase::kAdvance;
    call_ = client_.submit(str("checkpoint ", attempts_, ": advance"), requests, true);
  }

  PsClient& client_;
  PsWorld& world_;
  Phase phase_ = Phase::kPause;
  Time resumes_{};
  int attempts_ = 0;
  std::uint64_t cut_ = 0;
  std::vector<std::size_t> done_before_;
  CallPtr call_;
};

// A worker that takes checkpoints while it has pushes and pulls of its own under way.
class CountingSaver final : public PsProgram {
 public:
  CountingSaver(PsClient& client, PsWorld& world)
      : counting_(make_counting(client, world)), saver_(make_saver(client, world)) {}

  bool is_over() const override { return counting_->is_over() && saver_->is_over(); }

  void step() override {
    if (!counting_->is_over()) counting_->step();
    if (!saver_->is_over()) saver_->step();
  }

 private:
  std::unique_ptr<PsProgram> counting_;
  std::unique_ptr<PsProgram> saver_;
};

}  // namespace

std::unique_ptr<PsProgram> make_counting_saver(PsClient& client, PsWorld& world) {
  return std::make_unique<CountingSaver>(client, world);
}

std::unique_ptr<PsProgram> make_saver(PsClient& client, PsWorld& world) {
  return std::make_unique<Saver>(client, world);
}

}  // namespace gradring::sim
