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

std::shared_ptr<PlainCall> repeat_last_change(RemoteTable& table,
                                              std::span<const PlainCall::Answered> made) {
  std::vector<RuleInForce> found;
  for (const PlainCall::Answered& answer : made) {
    wire::Reader in(answer.payload);
    get_outcome(in);
    if (in.left() == 0) return nullptr;  // Asked again, it says less.
    found.push_back(get_rule_in_force(in));
    table.note_rule(found.back().order.number);
  }
  const auto [least, last] = std::minmax_element(
      found.begin(), found.end(),
      [](const RuleInForce& a, const RuleInForce& b) { return a.order < b.order; });
  if (found.empty() || least->order == last->order) return nullptr;
  wire::PsHeader header;
  header.type = wire::PsType::kSetRule;
  header.a = last->order.number;
  header.b = std::uint64_t{last->order.client} + 1;
  table.address(header);
  Bytes head;
  put(head, last->rule);
  auto call = std::make_shared<PlainCall>(str("setting the rule of table '", table.spec.name, "'"));
  call->add_to_all(table.shards, header, head);
  return call;
}

}  // namespace gradring::ps
