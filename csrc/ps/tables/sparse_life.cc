// A sparse table's rows through time: how they are admitted, made and removed, and which changed.
#include <algorithm>

#include "base/config.h"
#include "base/error.h"
#include "base/prefetch.h"
#include "ps/tables/sparse_table_impl.h"

namespace gradring::ps {
namespace {

constexpr std::uint32_t kEverybody = ~std::uint32_t{0};
constexpr std::size_t kNotesAhead = 16;
// Removals that are remembered, for incremental snapshots: at least these, or twice the rows.
constexpr std::size_t kLeastGone = 1u << 20;

// By squaring, in double: the same bits everywhere.
double power(double base, std::uint32_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base) {
    if (exponent & 1u) result *= base;
  }
  return result;
}

bool is_unseen(std::uint32_t last, std::uint32_t now, std::uint32_t most) {
  return most != 0 && now > last && now - last > most;
}

// Takes changes in their order, in whole stamps: a reader goes on after a stamp.
class Collector {
 public:
  Collector(const RowStore& rows, std::uint32_t client, std::size_t most,
            SparseTable::Changed& into)
      : rows_(rows), client_(client), most_(std::max<std::size_t>(most, 1)), into_(into) {}

  // False: there is no more room, and `into` says where to go on.
  bool take(const RowChange& change) {
    const RowNotes& notes = rows_.notes(change.row);
    if (notes.stamp != change.stamp) return true;  // It changed again, or is gone.
    if (client_ != kEverybody && notes.writer == client_) return true;
    if (change.stamp != stamp_) {
      stamp_ = change.stamp;
      whole_ = into_.ids.size();
    }
    if (into_.ids.size() >= most_ && whole_ > 0) {
      into_.ids.resize(whole_);
      into_.since = stamp_ - 1;
      into_.more = true;
      return false;
    }
    into_.ids.push_back(rows_.id(change.row));
    return true;
  }

 private:
  const RowStore& rows_;
  std::uint32_t client_;
  std::size_t most_;
  SparseTable::Changed& into_;
  std::uint64_t stamp_ = 0;
  std::size_t whole_ = 0;  // Ids of the stamps before this one.
};

}  // namespace

bool SparseTable::Impl::admits(std::uint64_t id, const Entry& entry) {
  if (entry.count <= 1 && entry.probability >= 1) return true;
  const std::uint64_t packed = candidates.find(id);
  Candidate candidate = packed == HashIndex::kNone ? Candidate{} : Candidate::from(packed);
  candidate.count += candidate.count == UINT32_MAX ? 0 : 1;
  candidate.tick = tick;
  keep_candidate(id);
  const bool is_lucky =
      entry.probability >= 1 || draws.admission(id, candidate.count) < entry.probability;
  if (candidate.count >= entry.count && is_lucky) {
    candidates.erase(id);
    return true;
  }
  candidates.assign(id, candidate.packed());
  return false;
}

std::uint64_t SparseTable::Impl::add(std::uint64_t id) {
  const std::uint64_t row = rows.add(id);
  index.insert(id, row);
  if (gone.size() > 0) gone.erase(id);
  if (gone_before.size() > 0) gone_before.erase(id);
  return row;
}

std::uint64_t SparseTable::Impl::create(std::uint64_t id) {
  const std::uint64_t row = add(id);
  float* const floats = rows.floats(row);
  draws.fill_row(spec.init, id, dim, floats);
  kernels::initialize_state(spec.rule, dim, floats + dim);
  rows.notes(row) = {.version = version_floor, .tick = tick};
  return row;
}

void SparseTable::Impl::remove(std::uint64_t row) {
  keep(row);
  const std::uint64_t id = rows.id(row);
  version_floor = std::max(version_floor, rows.notes(row).version);
  rows.remove(row);
  index.erase(id);
  note_gone(id);
}

void SparseTable::Impl::note_gone(std::uint64_t id) {
  if (gone.size() >= std::max(kLeastGone, index.size())) {
    // Half of what is remembered goes, so that there is always enough.
    gone_before = std::move(gone);
    gone = {};
    gone_complete_after = std::max(gone_complete_after, gone_begun);
    gone_begun = stamp;
  }
  gone_before.erase(id);
  gone.assign(id, stamp);
}

float SparseTable::Impl::score_at(const RowNotes& notes, std::uint32_t now) const {
  if (now <= notes.tick || spec.score_decay >= 1) return notes.score;
  return static_cast<float>(double{notes.score} *
                            power(double{spec.score_decay}, now - notes.tick));
}

template <typename IsOver>
std::size_t SparseTable::Impl::remove_where(IsOver&& is_over) {
  std::size_t removed = 0;
  for (std::uint64_t row = 0; row < rows.end(); ++row) {
    if (!rows.is_used(row) || !is_over(row)) continue;
    remove(row);
    ++removed;
  }
  return removed;
}

template <typename IsOver>
void SparseTable::Impl::forget_candidates(IsOver&& is_over) {
  std::vector<std::uint64_t> ids;
  for (std::size_t segment = 0; segment < HashIndex::kSegments; ++segment) {
    candidates.for_each_in(segment, [&](std::uint64_t id, std::uint64_t packed) {
      if (is_over(id, Candidate::from(packed).tick)) ids.push_back(id);
    });
  }
  for (const std::uint64_t id : ids) {
    keep_candidate(id);
    candidates.erase(id);
    note_gone(id);
  }
}

// The rows that were pushed before there were ticks, in an order that does not depend on where they
// lie: a table that was restored, and its log played again, dates them alike.
std::vector<RowChange> SparseTable::Impl::undated() const {
  std::vector<RowChange> found;
  for (std::uint64_t row = 0; row < rows.end(); ++row) {
    if (rows.notes(row).stamp == 0 || rows.notes(row).tick != 0) continue;
    found.push_back({rows.notes(row).stamp, row});
  }
  std::sort(found.begin(), found.end(), [this](const RowChange& a, const RowChange& b) {
    return a.stamp != b.stamp ? a.stamp < b.stamp : rows.id(a.row) < rows.id(b.row);
  });
  return found;
}

// What was pushed before there were ticks counts as of the tick `first`. In portions with a stamp
// each: what one stamp has is one answer to who asks for changes, and may not be a whole table.
void SparseTable::Impl::date(std::uint32_t first) {
  const std::size_t portion =
      std::max<std::size_t>(1, limits::kPsPartBytes / (dim * sizeof(float)));
  std::size_t dated = 0;
  for (const RowChange& before : undated()) {
    if (dated > 0 && dated % portion == 0) ++stamp;
    ++dated;
    keep(before.row);
    rows.notes(before.row).tick = first;
    rows.notes(before.row).stamp = stamp;  // The next incremental checkpoint has it.
  }
  changes.forget(stamp);
  std::vector<std::pair<std::uint64_t, Candidate>> found;
  for (std::size_t segment = 0; segment < HashIndex::kSegments; ++segment) {
    candidates.for_each_in(segment, [&](std::uint64_t id, std::uint64_t packed) {
      if (Candidate::from(packed).tick == 0) found.emplace_back(id, Candidate::from(packed));
    });
  }
  for (const auto& [id, candidate] : found) {
    keep_candidate(id);
    candidates.assign(id, Candidate{candidate.count, first}.packed());
  }
}

// Looks at every row, once for a reader that takes what is found in many portions.
void SparseTable::Impl::scan_for_changes(std::uint64_t since) const {
  if (scan.since <= since && since < scan.through) return;
  scan = {since, stamp, {}};
  for (std::uint64_t row = 0; row < rows.end(); ++row) {
    if (rows.notes(row).stamp > since) scan.found.push_back({rows.notes(row).stamp, row});
  }
  std::sort(scan.found.begin(), scan.found.end(), [](const RowChange& a, const RowChange& b) {
    return a.stamp != b.stamp ? a.stamp < b.stamp : a.row < b.row;
  });
}

std::uint32_t SparseTable::tick() const {
  return impl_->tick;
}

void SparseTable::begin_at(std::uint32_t tick) {
  impl_->tick = tick;
}

std::size_t SparseTable::set_tick(std::uint32_t tick) {
  Impl& t = *impl_;
  ++t.stamp;
  if (tick <= t.tick) return 0;  // Clients say it independently of each other.
  // The first one may be any number, such as a day's.
  if (t.tick == 0 && tick > 1) t.date(tick - 1);
  t.tick = tick;
  const bool expires = std::any_of(t.settings.begin(), t.settings.end(),
                                   [](const auto& each) { return each.unseen_ticks != 0; });
  if (!expires) return 0;
  const auto is_over = [&t](std::uint64_t id, std::uint32_t last) {
    return is_unseen(last, t.tick, t.settings_of(id).unseen_ticks);
  };
  t.forget_candidates(is_over);
  return t.remove_where(
      [&](std::uint64_t row) { return is_over(t.rows.id(row), t.rows.notes(row).tick); });
}

std::size_t SparseTable::shrink(float least_score, std::uint32_t unseen_ticks) {
  Impl& t = *impl_;
  ++t.stamp;
  t.forget_candidates(
      [&](std::uint64_t, std::uint32_t last) { return is_unseen(last, t.tick, unseen_ticks); });
  return t.remove_where([&](std::uint64_t row) {
    const RowNotes& notes = t.rows.notes(row);
    return t.score_at(notes, t.tick) < least_score || is_unseen(notes.tick, t.tick, unseen_ticks);
  });
}

SparseTable::Changed SparseTable::changed(std::uint64_t since, std::uint32_t client,
                                          std::size_t most) const {
  const Impl& t = *impl_;
  Changed result;
  result.since = t.stamp;
  if (since >= t.stamp) return result;
  Collector collector(t.rows, client, most, result);
  if (since < t.changes.complete_after()) {
    t.scan_for_changes(since);
    const std::vector<RowChange>& found = t.scan.found;
    auto next = std::upper_bound(
        found.begin(), found.end(), since,
        [](std::uint64_t stamp, const RowChange& change) { return stamp < change.stamp; });
    for (; next != found.end(); ++next) {
      if (found.end() - next > static_cast<std::ptrdiff_t>(kNotesAhead))
        prefetch_line(&t.rows.notes(next[kNotesAhead].row));
      if (!collector.take(*next)) return result;
    }
    since = t.scan.through;
    t.scan = {};
    if (since < t.changes.complete_after()) {  // The ring has forgotten that, too, by now.
      result.since = since;
      result.more = true;
      return result;
    }
  }
  for (std::uint64_t i = t.changes.first_after(since); i < t.changes.end(); ++i) {
    if (i + kNotesAhead < t.changes.end())
      prefetch_line(&t.rows.notes(t.changes.at(i + kNotesAhead).row));
    if (!collector.take(t.changes.at(i))) return result;
  }
  return result;
}

}  // namespace gradring::ps
