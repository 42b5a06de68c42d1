// The program of claims: a push of one that asks for the row after it is told a number, and no
// number is told twice, whatever is lost, repeated or killed in between.
#include <deque>

#include "base/text.h"
#include "ps/tables/partition.h"
#include "sim/ps/world.h"

namespace gradring::sim {
namespace {

constexpr std::uint64_t kCounters = 3;
const std::string kClaims = "claims";

class Claiming final : public PsProgram {
 public:
  Claiming(PsClient& client, PsWorld& world) : client_(client), world_(world) {
    call_ =
        client_.submit_to_all("make table", testing::make_table(testing::sum_table(kClaims, 1)));
  }

  bool is_over() const override { return is_over_; }

  void step() override {
    if (is_over_) return;
    if (call_ != nullptr) {
      if (!call_->is_done()) return;
      is_over_ = !world_.has_succeeded(client_, *call_);
      call_ = nullptr;
    }
    while (!is_over_ && !claims_.empty() && claims_.front().call->is_done()) take();
    while (!is_over_ && asked_ < world_.scenario.steps && claims_.size() < world_.scenario.depth)
      ask();
    is_over_ |= claims_.empty() && asked_ == world_.scenario.steps;
  }

 private:
  struct Claim {
    std::uint64_t counter;
    CallPtr call;
  };

  void ask() {
    const std::uint64_t counter = world_.dice.below(kCounters);
    claims_.push_back(
        {counter,
         client_.submit(str("claim ", asked_),
                        {{ps::shard_of(counter, client_.shards()),
                          testing::push(kClaims, {counter}, {1}, {.returns_rows = true})}})});
    ++asked_;
    ++world_.claims_sent[counter];
  }

  void take() {
    const Claim claim = claims_.front();
    claims_.pop_front();
    if (!world_.has_succeeded(client_, *claim.call)) {
      is_over_ = true;
      return;
    }
    const auto& payload = claim.call->answers()[0].payload;
    const float number = testing::floats_of(std::span(payload).subspan(ps::kOutcomeBytes))[0];
    const auto about = str("client ", client_.number(), " gets number ", number, " of counter ",
                           claim.counter, ", ");
    auto& taken = world_.claims[claim.counter];
    if (number < 1 || number > static_cast<float>(world_.claims_sent[claim.counter]))
      world_.complain(str(about, "of ", world_.claims_sent[claim.counter], " that were asked for"));
    if (!taken.insert(number).second) world_.complain(str(about, "which another has"));
  }

  PsClient& client_;
  PsWorld& world_;
  CallPtr call_;
  std::deque<Claim> claims_;
  std::uint32_t asked_ = 0;
  bool is_over_ = false;
};

}  // namespace

std::unique_ptr<PsProgram> make_claiming(PsClient& client, PsWorld& world) {
  return std::make_unique<Claiming>(client, world);
}

}  // namespace gradring::sim
