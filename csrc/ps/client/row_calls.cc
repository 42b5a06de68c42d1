#include "ps/client/row_calls.h"

#include <algorithm>
#include <new>

#include "base/config.h"
#include "kernels/update.h"
#include "ps/protocol/payloads.h"
#include "ps/protocol/row_codec.h"

namespace gradring::ps {
namespace {

using wire::PsType;
using wire::RowCodec;

template <typename Item>
std::string what_of(const char* verb, const std::vector<Item>& items) {
  std::string text = str(verb, " table");
  if (items.size() != 1) text += "s";
  for (std::size_t at = 0; at < items.size(); ++at)
    text += str(at == 0 ? " '" : ", '", items[at].table->spec.name, "'");
  return text;
}

void require_sparse(const RemoteTable& table) {
  if (table.spec.kind != TableKind::kSparse)
    throw InvalidArgument(str("table '", table.spec.name, "' is dense: it has no rows"));
}

std::size_t rows_per_part(std::size_t part_bytes, std::size_t row_bytes) {
  return std::max<std::size_t>(1, part_bytes / row_bytes);
}

void require_payload(std::span<const std::byte> payload, std::size_t bytes) {
  if (payload.size() != bytes)
    throw ProtocolError(str("an answer of ", payload.size(), " bytes instead of ", bytes));
}

const float* as_floats(std::span<const std::byte> bytes) {
  return reinterpret_cast<const float*>(bytes.data());
}

}  // namespace

PullCall::PullCall(std::vector<PullItem> items, const PullOptions& options)
    : Call(what_of("pull from", items)), items_(std::move(items)), options_(options) {
  Bytes gate;
  if (options_.gate) put(gate, *options_.gate);
  distinct_.reserve(items_.size());
  for (std::size_t item = 0; item < items_.size(); ++item) {
    const RemoteTable& table = *items_[item].table;
    require_sparse(table);
    auto& seen = seen_.emplace_back(table.shards);
    for (std::uint32_t shard = 0; shard < table.shards; ++shard) seen[shard] = table.seen(shard);
    const Distinct& distinct = distinct_.emplace_back(items_[item].ids, table.shards, false);
    const std::size_t most = rows_per_part(limits::kPsAnswerPartBytes,
                                           encoded_rows_bytes(options_.codec, table.spec.dim, 1));
    for (std::uint32_t shard = 0; shard < table.shards; ++shard) {
      const std::size_t end = distinct.end_of(shard);
      for (std::size_t first = distinct.begin_of(shard); first < end; first += most) {
        const std::size_t count = std::min(most, end - first);
        Part part;
        part.shard = shard;
        part.header.type = PsType::kPull;
        part.header.codec = options_.codec;
        table.address(part.header);
        part.header.count = static_cast<std::uint32_t>(count);
        if (options_.gate) part.header.flags = wire::kHasGate;
        part.head = gate;
        part.rows = count;
        parts_.push_back(std::move(part));
        places_.push_back({item, first, count});
      }
    }
  }
}

Body PullCall::body(std::size_t part) {
  const Place& place = places_[part];
  return {std::as_bytes(distinct_[place.item].ids().subspan(place.first, place.count)), {}};
}

std::span<std::byte> PullCall::destination(std::size_t part, const wire::PsHeader& answer) {
  const Place& place = places_[part];
  const PullItem& item = items_[place.item];
  if (answer.type != PsType::kRows || options_.codec != RowCodec::kFloat32 ||
      !distinct_[place.item].is_identity())
    return {};
  const std::size_t dim = item.table->spec.dim;
  return std::as_writable_bytes(std::span(item.out + place.first * dim, place.count * dim));
}

void PullCall::take(std::size_t part, const wire::PsHeader& answer,
                    std::span<const std::byte> payload) {
  const Place& place = places_[part];
  const PullItem& item = items_[place.item];
  const std::size_t dim = item.table->spec.dim;
  if (answer.type != PsType::kRows) throw ProtocolError("an answer of another kind");
  require_payload(payload, encoded_rows_bytes(options_.codec, dim, place.count));
  item.table->note_seen(parts_[part].shard, answer.a);
  seen_[place.item][parts_[part].shard] = answer.a;
  const float* rows = as_floats(payload);
  if (options_.codec != RowCodec::kFloat32) {
    scratch_.resize(place.count * dim);
    decode_rows(options_.codec, dim, place.count, payload.data(), scratch_.data());
    rows = scratch_.data();
  } else if (rows == item.out + place.first * dim && distinct_[place.item].is_identity()) {
    return;  // They were received where they belong.
  }
  distinct_[place.item].fan_out(place.first, place.count, rows, dim, item.out);
}

PushCall::PushCall(std::vector<PushItem> items, const PushOptions& options)
    : Call(what_of("push to", items)), items_(std::move(items)), options_(options) {
  distinct_.reserve(items_.size());
  for (std::size_t item = 0; item < items_.size(); ++item) {
    RemoteTable& table = *items_[item].table;
    require_sparse(table);
    const Distinct& distinct =
        distinct_.emplace_back(items_[item].ids, table.shards, options_.ids_are_distinct);
    report_.rows += distinct.ids().size();
    const std::uint64_t nth = table.next_push();
    const std::size_t most = rows_per_part(
        limits::kPsPushPartBytes,
        sizeof(std::uint64_t) + encoded_rows_bytes(options_.codec, table.spec.dim, 1));
    for (std::uint32_t shard = 0; shard < table.shards; ++shard) {
      const std::size_t begin = distinct.begin_of(shard);
      const std::size_t end = distinct.end_of(shard);
      // Its steps are the table's: every shard has to hear of every one.
      if (begin == end && table.spec.rule.kind == kernels::RuleKind::kSparseAdam)
        add_part(item, shard, begin, 0, nth, true);
      for (std::size_t first = begin; first < end; first += most)
        add_part(item, shard, first, std::min(most, end - first), nth, first + most >= end);
    }
  }
}

void PushCall::add_part(std::size_t item, std::uint32_t shard, std::size_t first, std::size_t count,
                        std::uint64_t nth, bool is_last) {
  const RemoteTable& table = *items_[item].table;
  Part part;
  part.shard = shard;
  part.header.type = PsType::kPush;
  part.header.codec = options_.codec;
  table.address(part.header);
  part.header.count = static_cast<std::uint32_t>(count);
  const auto& seen = items_[item].seen;
  part.header.a = seen.empty() ? table.seen(shard) : seen[shard];
  part.header.b = nth;
  if (options_.codec != RowCodec::kFloat32) part.header.flags |= wire::kTellsSkipped;
  if (is_last) part.header.flags |= wire::kIsLastPart;
  if (items_[item].rows_after != nullptr) part.header.flags |= wire::kReturnsRows;
  if (options_.round) {
    part.header.flags |= wire::kHasRound;
    put(part.head, *options_.round);
  }
  part.rows = count;
  parts_.push_back(std::move(part));
  places_.push_back({item, first, count, {}, {}});
}

Body PushCall::body(std::size_t part) {
  Place& place = places_[part];
  const PushItem& item = items_[place.item];
  const Distinct& distinct = distinct_[place.item];
  const std::size_t dim = item.table->spec.dim;
  const auto ids = std::as_bytes(ids_of(place));
  const bool is_plain = options_.codec == RowCodec::kFloat32;
  if (is_plain && distinct.is_identity())
    return {ids, std::as_bytes(std::span(item.gradients + place.first * dim, place.count * dim))};
  if (place.rows.empty() && place.count > 0) {
    if (!spare_.empty()) {
      place.rows = std::move(spare_.back());
      spare_.pop_back();
    }
    place.rows.resize(encoded_rows_bytes(options_.codec, dim, place.count));
    if (!is_plain) scratch_.resize(place.count * dim);
    float* sums = is_plain ? reinterpret_cast<float*>(place.rows.data()) : scratch_.data();
    distinct.sum(place.first, place.count, item.gradients, dim, sums);
    if (!is_plain) encode(place, sums);
  }
  return {ids, place.rows};
}

// Once a part: its rows stay until they are acknowledged.
void PushCall::encode(Place& place, const float* sums) {
  RemoteTable& table = *items_[place.item].table;
  const std::size_t dim = table.spec.dim;
  const std::size_t floats = place.count * dim;
  place.residuals.resize(2 * floats);
  float* const taken = place.residuals.data();
  float* const left = taken + floats;
  table.residuals.take(ids_of(place), taken);
  std::copy_n(taken, floats, left);
  encode_rows(options_.codec, dim, place.count, sums, left, place.rows.data());
  // What is not finite servers refuse, also in rounds, which say nothing of single rows.
  for (std::size_t at = 0; at < floats; at += dim)
    if (!kernels::is_finite(sums + at, dim)) std::copy_n(taken + at, dim, left + at);
}

std::span<const std::uint64_t> PushCall::ids_of(const Place& place) const {
  return distinct_[place.item].ids().subspan(place.first, place.count);
}

template <typename IsDone>
void PushCall::settle_residuals(Place& place, IsDone&& is_done) {
  if (place.residuals.empty()) return;
  Residuals& residuals = items_[place.item].table->residuals;
  const std::size_t dim = items_[place.item].table->spec.dim;
  const float* const taken = place.residuals.data();
  const float* const left = taken + place.count * dim;
  const auto ids = ids_of(place);
  for (std::size_t row = 0; row < ids.size(); ++row)
    residuals.add(ids[row], (is_done(row) ? left : taken) + row * dim);
  give_back(place.residuals);
}

// Sums of gradients are found again if they have to go out once more: kept for all that is under
// way they would be written to memory, and that memory be new in every call. What a codec made of
// them and of residuals cannot be found again.
void PushCall::sent(std::size_t part) {
  if (options_.codec == RowCodec::kFloat32) release(part);
}

void PushCall::release(std::size_t part) {
  Bytes& rows = places_[part].rows;
  if (rows.capacity() == 0) return;
  try {
    spare_.push_back(std::move(rows));
  } catch (const std::bad_alloc&) {
    // Then it is none.
  }
  give_back(rows);
}

void PushCall::refused(std::size_t part) {
  settle_residuals(places_[part], [](std::size_t) { return false; });
}

void PushCall::take(std::size_t part, const wire::PsHeader& answer,
                    std::span<const std::byte> payload) {
  Place& place = places_[part];
  const PushItem& item = items_[place.item];
  const std::size_t dim = item.table->spec.dim;
  if (answer.type != PsType::kDone) throw ProtocolError("an answer of another kind");
  wire::Reader in(payload);
  Outcome outcome = get_outcome(in);
  if ((answer.flags & wire::kTellsSkipped) != 0) outcome.skipped = get_skipped(in, place.count);
  settle_residuals(place, [&](std::size_t row) { return !outcome.skips(row); });
  report_.refused += outcome.refused;
  report_.not_admitted += outcome.not_admitted;
  report_.staleness = std::max(report_.staleness, outcome.staleness);
  if (item.rows_after == nullptr) return in.finish();
  const auto rows = in.take(encoded_rows_bytes(options_.codec, dim, place.count));
  in.finish();
  const float* values = as_floats(rows);
  if (options_.codec != RowCodec::kFloat32) {
    scratch_.resize(place.count * dim);
    decode_rows(options_.codec, dim, place.count, rows.data(), scratch_.data());
    values = scratch_.data();
  }
  distinct_[place.item].fan_out(place.first, place.count, values, dim, item.rows_after);
}

}  // namespace gradring::ps
