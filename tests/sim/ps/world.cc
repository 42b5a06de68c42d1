#include "sim/ps/world.h"

#include "base/text.h"
#include "ps/tables/partition.h"

namespace gradring::sim {

bool PsWorld::has_succeeded(const PsClient& client, const ps::Call& call) {
  ++calls_ended;
  const Failure& failure = call.failure();
  trace.note(client.now(), static_cast<Rank>(client.number()),
             str(call.what(), failure ? str(": ", name(failure.kind), ": ", failure.text)
                                      : std::string(" is done")));
  if (!failure) return true;
  ++calls_failed;
  // A freeze may melt before everybody is there, whatever happens.
  const bool is_checkpoint = call.what().starts_with("checkpoint");
  if (!is_checkpoint) troubled.insert(client.number());
  const auto about = str("client ", client.number(), ", ", call.what(), ": ", name(failure.kind),
                         ": ", failure.text);
  if (scenario.is_gentle() && !is_checkpoint)
    complain(str("nothing lasted long enough for this to fail: ", about));
  const bool is_named = failure.text.find("shard ") != std::string::npos ||
                        failure.text.find("worker") != std::string::npos;
  if (!is_named) complain(str("an error that names nobody: ", about));
  switch (failure.kind) {
    case ErrorKind::kPeerLost:
    case ErrorKind::kTimedOut: break;
    case ErrorKind::kClosed:
      if (!was_given_up(client.number())) complain(str("closed, and nobody was given up: ", about));
      break;
    case ErrorKind::kProtocolError:
      // Behind a freeze it is refused later, and its connection stays.
      if (call.what() == "poison") break;
      complain(str("an error of the wrong kind: ", about));
      break;
    case ErrorKind::kInvalidArgument:
      // Of a checkpoint: another one is being written. Of a server without a log: no table.
      if (is_checkpoint || !scenario.has_log) break;
      [[fallthrough]];
    default: complain(str("an error of the wrong kind: ", about));
  }
  return false;
}

ps::TableSpec counts_table(const PsScenario& scenario) {
  return testing::sum_table(kCounts, scenario.clients);
}

ps::TableSpec adagrad_table() {
  ps::TableSpec spec = testing::sum_table(kAdagrad, 3);
  spec.rule.kind = kernels::RuleKind::kAdagrad;
  spec.rule.lr = 0.1;
  spec.init = {ps::InitKind::kNormal, 0, 1};
  spec.seed = 3;
  spec.unseen_ticks = 4;
  spec.score_decay = 0.5f;
  return spec;
}

ps::TableSpec dense_table(const PsScenario& scenario) {
  ps::TableSpec spec = testing::sum_table(kDense, 1);
  spec.kind = ps::TableKind::kDense;
  spec.count = std::uint64_t{kDenseFloats} * scenario.shards();
  return spec;
}

std::vector<std::vector<std::uint64_t>> by_shard(const std::vector<std::uint64_t>& ids,
                                                 std::uint32_t shards) {
  std::vector<std::vector<std::uint64_t>> found(shards);
  for (const std::uint64_t id : ids) found[ps::shard_of(id, shards)].push_back(id);
  return found;
}

}  // namespace gradring::sim
