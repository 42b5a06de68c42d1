#include "support/ps/table_reference.h"

#include <algorithm>

namespace gradring::reference {
namespace {

const ps::SlotSettings* slot_of(const ps::TableSpec& spec, std::uint64_t id) {
  for (const ps::SlotSettings& slot : spec.slots) {
    if (slot.slot == (spec.slot_shift == 0 ? id : id >> spec.slot_shift)) return &slot;
  }
  return nullptr;
}

}  // namespace

Table::Table(const ps::TableSpec& spec) : spec_(spec), draws_(spec.seed, ps::table_id(spec.name)) {}

std::vector<float> Table::gather(std::span<const std::uint64_t> ids) const {
  std::vector<float> out;
  for (const std::uint64_t id : ids) {
    std::vector<float> row(spec_.dim);
    const auto found = rows_.find(id);
    if (found == rows_.end()) {
      draws_.fill_row(spec_.init, id, spec_.dim, row.data());
    } else {
      std::copy_n(found->second.floats.begin(), spec_.dim, row.begin());
    }
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

bool Table::admits(std::uint64_t id) {
  const ps::SlotSettings* slot = slot_of(spec_, id);
  const ps::Entry entry = slot == nullptr ? spec_.entry : slot->entry;
  const std::uint32_t nth = ++candidates_[id];
  candidates_tick_[id] = tick_;
  const bool is_row = nth >= entry.count &&
                      (entry.probability == 1 || draws_.admission(id, nth) < entry.probability);
  if (is_row) candidates_.erase(id);
  return is_row;
}

ps::Applied Table::apply(std::span<const std::uint64_t> ids, std::vector<float> gradients,
                         std::uint32_t client, std::uint64_t step) {
  ++stamp_;
  ps::Applied applied;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    float* const gradient = gradients.data() + i * spec_.dim;
    if (!std::all_of(gradient, gradient + spec_.dim, [](float v) { return std::isfinite(v); })) {
      ++applied.refused;
      continue;
    }
    auto found = rows_.find(ids[i]);
    if (found == rows_.end()) {
      if (!admits(ids[i])) {
        ++applied.not_admitted;
        continue;
      }
      Row row;
      row.meta = {.id = ids[i], .version = highest_gone_, .tick = tick_};
      row.floats.resize(spec_.dim + kernels::state_floats(spec_.rule, spec_.dim));
      draws_.fill_row(spec_.init, ids[i], spec_.dim, row.floats.data());
      kernels::initialize_state(spec_.rule, spec_.dim, row.floats.data() + spec_.dim);
      found = rows_.emplace(ids[i], row).first;
    }
    auto& [meta, floats] = found->second;
    kernels::Rule rule = spec_.rule;
    if (const auto* slot = slot_of(spec_, ids[i])) rule.lr *= slot->lr_scale;
    ++meta.steps;
    kernels::update_row(rule, rule.kind == kernels::RuleKind::kSparseAdam ? step : meta.steps,
                        spec_.dim, floats.data(), floats.data() + spec_.dim, gradient);
    for (; meta.tick < tick_; ++meta.tick) meta.score *= spec_.score_decay;
    meta.score += 1;
    meta.stamp = stamp_;
    meta.writer = client;
    ++meta.version;
    ++applied.rows;
  }
  return applied;
}

void Table::write(std::span<const ps::RowMeta> metas, const std::vector<float>& floats,
                  std::uint32_t client) {
  ++stamp_;
  const std::size_t row_floats = floats.size() / metas.size();
  for (std::size_t i = 0; i < metas.size(); ++i) {
    Row row{metas[i], {}};
    const auto from = floats.begin() + static_cast<std::ptrdiff_t>(i * row_floats);
    row.floats.assign(from, from + static_cast<std::ptrdiff_t>(row_floats));
    const auto found = rows_.find(metas[i].id);
    const std::uint32_t own = found == rows_.end() ? highest_gone_ : found->second.meta.version;
    row.meta.version = std::max(own + 1, metas[i].version);
    row.meta.stamp = stamp_;
    row.meta.writer = client;
    rows_[metas[i].id] = row;
    candidates_.erase(metas[i].id);
  }
}

template <typename IsOver>
std::size_t Table::remove_where(IsOver&& is_over) {
  std::size_t removed = 0;
  for (auto row = rows_.begin(); row != rows_.end();) {
    if (is_over(row->second.meta)) {
      highest_gone_ = std::max(highest_gone_, row->second.meta.version);
      row = rows_.erase(row);
      ++removed;
    } else {
      ++row;
    }
  }
  return removed;
}

std::size_t Table::set_tick(std::uint32_t tick) {
  ++stamp_;
  tick_ = std::max(tick_, tick);
  const auto is_unseen = [this](std::uint64_t id, std::uint32_t last) {
    const auto* slot = slot_of(spec_, id);
    const std::uint32_t most = slot == nullptr ? spec_.unseen_ticks : slot->unseen_ticks;
    return most != 0 && tick_ - last > most;
  };
  std::erase_if(candidates_, [&](const auto& each) {
    return is_unseen(each.first, candidates_tick_[each.first]);
  });
  return remove_where([&](const ps::RowMeta& meta) { return is_unseen(meta.id, meta.tick); });
}

std::size_t Table::shrink(float least_score, std::uint32_t unseen_ticks) {
  ++stamp_;
  const auto is_unseen = [&](std::uint32_t last) {
    return unseen_ticks != 0 && tick_ > last && tick_ - last > unseen_ticks;
  };
  std::erase_if(candidates_,
                [&](const auto& each) { return is_unseen(candidates_tick_[each.first]); });
  return remove_where([&](const ps::RowMeta& meta) {
    float score = meta.score;
    for (std::uint32_t tick = meta.tick; tick < tick_; ++tick) score *= spec_.score_decay;
    return score < least_score || is_unseen(meta.tick);
  });
}

std::multimap<std::uint64_t, std::uint64_t> Table::changed(std::uint64_t since,
                                                           std::uint32_t client) const {
  std::multimap<std::uint64_t, std::uint64_t> changed;
  for (const auto& [id, row] : rows_) {
    if (row.meta.stamp > since && (client == ~0u || row.meta.writer != client))
      changed.emplace(row.meta.stamp, id);
  }
  return changed;
}

}  // namespace gradring::reference
