#include "sim/ps/upkeep.h"

#include "base/text.h"

namespace gradring::sim {
namespace {

constexpr std::uint64_t kKeptRows = 300;
constexpr std::size_t kKeptFloats = 6;  // Of a row of three: Adagrad's state is as long.

CallPtr submit_writes(PsClient& client, PsWorld& world) {
  std::set<std::uint64_t> ids;
  for (std::uint64_t left = 1 + world.dice.below(6); left > 0; --left)
    ids.insert(world.dice.below(kKeptRows));
  const auto parts = by_shard({ids.begin(), ids.end()}, client.shards());
  std::vector<Addressed> requests;
  for (std::uint32_t shard = 0; shard < client.shards(); ++shard) {
    std::vector<ps::RowMeta> metas;
    testing::Values floats;
    for (const std::uint64_t id : parts[shard]) {
      ps::RowMeta meta;
      meta.id = id;
      meta.version = static_cast<std::uint32_t>(world.dice.below(50));
      meta.tick = world.tick;
      meta.score = static_cast<float>(world.dice.below(5));
      metas.push_back(meta);
      for (std::size_t i = 0; i < kKeptFloats; ++i)
        floats.push_back(static_cast<float>(world.dice.below(100)) / 50.0f);
    }
    if (!metas.empty()) requests.push_back({shard, testing::write_rows(kAdagrad, metas, floats)});
  }
  return client.submit("write rows", requests);
}

Upkeep submit_rule(PsClient& client, PsWorld& world) {
  ps::TableSpec spec = adagrad_table();
  // Each process knows the number of the last change from what it was told.
  auto& table = world.tables[client.process()];
  if (!table) table = std::make_shared<ps::RemoteTable>(spec, client.shards());
  spec.rule.lr = 0.05 * static_cast<double>(1 + world.dice.below(4));
  const auto rules = std::make_shared<ps::RuleChange>();
  rules->add(table, spec.rule);
  const Upkeep made{rules->begin(), rules};
  ++world.rules_under_way;
  client.submit(made.call);
  return made;
}

}  // namespace

Upkeep submit_upkeep(PsClient& client, PsWorld& world) {
  // Of changes of a rule two at once are what matters.
  const bool joins_in = world.rules_under_way > 0;
  switch (joins_in ? 2 : world.dice.below(4)) {
    case 0:
      // Now and then one that another client has told already.
      world.tick +=
          world.dice.percent(75) ? 1 + static_cast<std::uint32_t>(world.dice.below(3)) : 0;
      return {client.submit_to_all(str("tick ", world.tick), testing::tick(world.tick))};
    case 1: {
      const float least = static_cast<float>(world.dice.below(4)) / 2;
      const auto unseen = static_cast<std::uint32_t>(world.dice.below(4));
      return {client.submit_to_all("shrink", testing::shrink(kAdagrad, least, unseen))};
    }
    case 2: return submit_rule(client, world);
    default: return {submit_writes(client, world)};
  }
}

Upkeep go_on_with(const Upkeep& upkeep, PsClient& client, PsWorld& world) {
  if (upkeep.rules) {
    Upkeep next{upkeep.rules->go_on(*upkeep.call), upkeep.rules};
    if (next.call)
      client.submit(next.call);
    else
      --world.rules_under_way;
    world.rules_made_anew += next.call ? 1 : 0;
    return next;
  }
  for (const auto& answer : upkeep.call->answers()) {
    wire::Reader in(answer.payload);
    world.rows_removed += ps::get_outcome(in).workers;
  }
  return {};
}

}  // namespace gradring::sim
