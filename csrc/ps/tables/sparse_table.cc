#include "ps/tables/sparse_table.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/prefetch.h"
#include "ps/tables/sparse_table_impl.h"

namespace gradring::ps {
namespace {

constexpr std::size_t kIdsAhead = 64;  // Ids whose slots are.

bool counts_steps_per_table(const kernels::Rule& rule) {
  return rule.kind == kernels::RuleKind::kSparseAdam;
}

}  // namespace

SparseTable::Impl::Impl(TableSpec table_spec)
    : spec(std::move(table_spec)),
      draws(spec.seed, table_id(spec.name)),
      dim(spec.dim),
      state(kernels::state_floats(spec.rule, spec.dim)),
      rows(dim + state) {
  const auto updater = [&](double lr_scale) {
    kernels::Rule rule = spec.rule;
    rule.lr *= lr_scale;
    return kernels::Updater<float>(rule, dim);
  };
  settings.push_back({updater(1), 1, spec.entry, spec.unseen_ticks});
  for (const SlotSettings& slot : spec.slots) {
    slots[slot.slot] = settings.size();
    settings.push_back({updater(slot.lr_scale), slot.lr_scale, slot.entry, slot.unseen_ticks});
  }
  has_entry = std::any_of(settings.begin(), settings.end(), [](const Settings& each) {
    return each.entry.count > 1 || each.entry.probability < 1;
  });
}

void SparseTable::Impl::scale_rates(double new_scale) {
  if (new_scale != scale) set_rule(spec.rule, new_scale);
}

// All or nothing: settings that are refused leave those in force.
void SparseTable::Impl::set_rule(const kernels::Rule& rule, double new_scale) {
  std::vector<kernels::Updater<float>> updaters;
  updaters.reserve(settings.size());
  for (const Settings& each : settings) {
    kernels::Rule scaled = rule;
    scaled.lr *= each.lr_scale * new_scale;
    updaters.emplace_back(scaled, dim);
  }
  for (std::size_t i = 0; i < settings.size(); ++i) settings[i].updater = updaters[i];
  spec.rule = rule;
  scale = new_scale;
}

void SparseTable::set_rule(const kernels::Rule& rule) {
  impl_->set_rule(rule, impl_->scale);
}

// The rows of a block of ids from `begin` on. Their memory is on its way then, and so are the
// index's slots for what comes after them. Every slot and every row lies in another page, and a
// processor looks up the pages of the few instructions that it has before it: so these are loops
// that do nothing else, and the first one of the rows takes a line of each.
void SparseTable::Impl::locate(std::span<const std::uint64_t> ids, std::size_t begin,
                               const Needs& needs, Found& found) const {
  found.count = std::min(needs.rows, ids.size() - begin);
  prefetch_slots(ids, begin + kIdsAhead, needs.rows);
  for (std::size_t i = 0; i < found.count; ++i) found.rows[i] = index.find(ids[begin + i]);
  for (std::size_t i = 0; i < found.count; ++i) {
    const bool is_there = found.rows[i] != HashIndex::kNone;
    found.floats[i] = is_there ? rows.floats(found.rows[i]) : nullptr;
    if (is_there && needs.floats > 0) prefetch_line(found.floats[i]);
  }
  for (std::size_t i = 0; i < found.count; ++i) {
    if (found.floats[i] == nullptr) continue;
    prefetch_rest_of_row(found.floats[i], needs.floats);
    if (needs.notes) prefetch_line(&rows.notes(found.rows[i]));
  }
}

// While one block is worked on, the next one's memory is on its way.
template <typename Work>
void SparseTable::Impl::for_each_block(std::span<const std::uint64_t> ids, const Needs& needs,
                                       Work&& work) const {
  Found found[2];
  prefetch_slots(ids, 0, kIdsAhead);
  locate(ids, 0, needs, found[0]);
  for (std::size_t begin = 0, now = 0; begin < ids.size(); now ^= 1) {
    locate(ids, begin + found[now].count, needs, found[now ^ 1]);
    work(begin, found[now]);
    begin += found[now].count;
  }
}

bool SparseTable::Impl::update(std::uint64_t id, std::uint64_t row, float* gradient, Push& push) {
  if (!push.is_finite && !kernels::is_finite(gradient, dim)) {
    ++push.applied.refused;
    return false;
  }
  Settings& with = settings_of(id);
  if (row == HashIndex::kNone) row = index.find(id);  // An id that is there twice is a row by now.
  if (row != HashIndex::kNone) {
    keep(row);
  } else if (admits(id, with.entry)) {
    row = create(id);
  } else {
    ++push.applied.not_admitted;
    return false;
  }
  RowNotes& notes = rows.notes(row);
  count_one(notes.steps);
  float* const weights = rows.floats(row);
  const std::uint64_t step = counts_steps_per_table(spec.rule) ? push.step : notes.steps;
  with.updater.update(step, weights, weights + dim, gradient);
  notes.score = score_at(notes, tick) + 1;
  notes.tick = tick;
  notes.stamp = stamp;
  notes.writer = push.client;
  count_one(notes.version);
  changes.append(stamp, row);
  ++push.applied.rows;
  return true;
}

RowMeta SparseTable::Impl::meta(std::uint64_t row) const {
  const RowNotes& notes = rows.notes(row);
  return {.id = rows.id(row),
          .stamp = notes.stamp,
          .version = notes.version,
          .steps = notes.steps,
          .writer = notes.writer,
          .tick = notes.tick,
          .score = notes.score};
}

void SparseTable::Impl::set_notes(std::uint64_t row, const RowMeta& meta) {
  rows.notes(row) = {.stamp = meta.stamp,
                     .version = meta.version,
                     .steps = meta.steps,
                     .writer = meta.writer,
                     .tick = meta.tick,
                     .score = meta.score};
}

SparseTable::SparseTable(TableSpec spec) {
  require_valid(spec);
  if (spec.kind != TableKind::kSparse)
    throw InvalidArgument(str("table \"", spec.name, "\" is dense, not sparse"));
  impl_ = std::make_unique<Impl>(std::move(spec));
}

SparseTable::~SparseTable() = default;

const TableSpec& SparseTable::spec() const {
  return impl_->spec;
}
std::size_t SparseTable::size() const {
  return impl_->index.size();
}
std::size_t SparseTable::row_floats() const {
  return impl_->dim + impl_->state;
}
std::uint64_t SparseTable::stamp() const {
  return impl_->stamp;
}
std::uint64_t SparseTable::bytes() const {
  const std::uint64_t aside = impl_->snapshot == nullptr ? 0 : impl_->snapshot->aside_bytes();
  return impl_->rows.bytes() + impl_->index.bytes() + impl_->candidates.bytes() +
         impl_->gone.bytes() + impl_->gone_before.bytes() + impl_->changes.bytes() + aside;
}

void SparseTable::gather(std::span<const std::uint64_t> ids, float* out) const {
  const Impl& t = *impl_;
  const Impl::Needs needs{.floats = t.dim};
  t.for_each_block(ids, needs, [&](std::size_t begin, const auto& found) {
    for (std::size_t i = 0; i < found.count; ++i) {
      float* const to = out + (begin + i) * t.dim;
      if (found.floats[i] == nullptr) {
        t.draws.fill_row(t.spec.init, ids[begin + i], t.dim, to);
      } else {
        std::memcpy(to, found.floats[i], t.dim * sizeof(float));
      }
    }
  });
}

void SparseTable::versions(std::span<const std::uint64_t> ids, std::uint32_t* out) const {
  const Impl& t = *impl_;
  const Impl::Needs needs{.notes = true};
  t.for_each_block(ids, needs, [&](std::size_t begin, const auto& found) {
    for (std::size_t i = 0; i < found.count; ++i)
      out[begin + i] = found.floats[i] == nullptr ? 0 : t.rows.notes(found.rows[i]).version;
  });
}

void SparseTable::reserve(std::size_t rows, std::size_t fresh) {
  Impl& t = *impl_;
  t.rows.reserve(fresh);
  t.index.reserve(fresh);
  t.changes.reserve(rows);
  t.skipped.clear();
  reserve_more(t.skipped, rows);
  if (t.has_entry) t.candidates.reserve(fresh);
  if (t.snapshot != nullptr) t.reserve_aside(rows);
}

std::size_t SparseTable::count_fresh(std::span<const std::uint64_t> ids) const {
  return static_cast<std::size_t>(std::count_if(ids.begin(), ids.end(), [this](std::uint64_t id) {
    return impl_->index.find(id) == HashIndex::kNone;
  }));
}

Applied SparseTable::apply(std::span<const std::uint64_t> ids, float* gradients,
                           std::uint32_t client, std::uint64_t step, double scale) {
  Impl& t = *impl_;
  t.scale_rates(scale);
  ++t.stamp;
  Impl::Push push{client, step, {}, false};
  t.skipped.clear();
  const Impl::Needs needs{
      .floats = t.dim + t.state, .notes = true, .rows = Impl::rows_to_update(t.dim + t.state)};
  t.for_each_block(ids, needs, [&](std::size_t begin, const auto& found) {
    push.is_finite = kernels::is_finite(gradients + begin * t.dim, found.count * t.dim);
    for (std::size_t i = 0; i < found.count; ++i)
      if (!t.update(ids[begin + i], found.rows[i], gradients + (begin + i) * t.dim, push))
        t.skipped.push_back(begin + i);
  });
  push.applied.skipped = t.skipped;
  return push.applied;
}

SparseTable::Rows SparseTable::read(std::uint64_t cursor, std::size_t most) const {
  const Impl& t = *impl_;
  Rows rows;
  for (; cursor < t.rows.end() && rows.metas.size() < most; ++cursor) {
    if (!t.rows.is_used(cursor)) continue;
    rows.metas.push_back(t.meta(cursor));
    const float* const floats = t.rows.floats(cursor);
    rows.floats.insert(rows.floats.end(), floats, floats + row_floats());
  }
  while (cursor < t.rows.end() && !t.rows.is_used(cursor)) ++cursor;
  rows.cursor = cursor;
  rows.more = cursor < t.rows.end();
  return rows;
}

bool SparseTable::read_row(std::uint64_t id, RowMeta& meta, float* floats) const {
  const std::uint64_t row = impl_->index.find(id);
  if (row == HashIndex::kNone) return false;
  meta = impl_->meta(row);
  std::memcpy(floats, impl_->rows.floats(row), row_floats() * sizeof(float));
  return true;
}

void SparseTable::write(std::span<const RowMeta> metas, const float* floats, std::uint32_t client) {
  Impl& t = *impl_;
  ++t.stamp;
  for (std::size_t i = 0; i < metas.size(); ++i) {
    RowMeta meta = metas[i];
    std::uint64_t row = t.index.find(meta.id);
    std::uint32_t version = t.version_floor;
    if (row == HashIndex::kNone) {
      row = t.add(meta.id);
      t.keep_candidate(meta.id);
      t.candidates.erase(meta.id);
    } else {
      t.keep(row);
      version = t.rows.notes(row).version;
    }
    meta.stamp = t.stamp;
    count_one(version);
    meta.version = std::max(version, meta.version);
    meta.writer = client;
    t.set_notes(row, meta);
    std::memcpy(t.rows.floats(row), floats + i * row_floats(), row_floats() * sizeof(float));
    t.changes.append(t.stamp, row);
  }
}

}  // namespace gradring::ps
