#include "ps/client/rule_change.h"

#include <algorithm>
#include <utility>

namespace gradring::ps {

void RuleChange::add(const std::shared_ptr<RemoteTable>& table, const kernels::Rule& rule) {
  require_successor(table->spec, rule);
  wanted_.push_back({table, rule});
}

std::shared_ptr<PlainCall> RuleChange::begin() {
  is_last_ = false;
  return call();
}

std::shared_ptr<PlainCall> RuleChange::go_on(const PlainCall& done) {
  std::vector<Wanted> beaten;
  std::size_t part = 0;
  for (const Wanted& one : wanted_) {
    bool is_beaten = false;
    for (std::uint32_t shard = 0; shard < one.table->shards; ++shard) {
      wire::Reader in(done.answers()[part++].payload);
      const Outcome outcome = get_outcome(in);
      one.table->note_rule(outcome.workers);
      is_beaten |= outcome.refused > 0;
    }
    if (is_beaten) beaten.push_back(one);
  }
  if (beaten.empty() || std::exchange(is_last_, true)) return nullptr;
  wanted_ = std::move(beaten);
  return call();
}

std::shared_ptr<PlainCall> RuleChange::call() const {
  auto made = std::make_shared<PlainCall>("setting the rules of tables");
  for (const Wanted& one : wanted_) {
    wire::PsHeader header;
    header.type = wire::PsType::kSetRule;
    header.a = one.table->next_rule();
    one.table->address(header);
    Bytes head;
    put(head, one.rule);
    made->add_to_all(one.table->shards, header, head);
  }
  return made;
}

}  // namespace gradring::ps
