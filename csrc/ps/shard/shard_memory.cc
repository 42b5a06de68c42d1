// Whether there is memory for a change, asked before the journal has it: what finds none is refused
// whole, and told so. Where the journal is played again there may be more memory, or less, and what
// came after it was done with this change or without.
#include <algorithm>
#include <new>

#include "base/config.h"
#include "ps/shard/shard_state.h"

namespace gradring::ps {
namespace {

using wire::PsHeader;
using wire::PsType;

constexpr std::size_t kLastMemory = std::size_t{16} << 10;

bool has_rows(const PsHeader& change) {
  return change.type == PsType::kPush || change.type == PsType::kPushDense ||
         change.type == PsType::kWriteRows;
}

// No more than have come, whatever the header says.
std::size_t count_rows(const Table& table, const Frame& change) {
  const PsHeader& header = change.header;
  if (!table.sparse) return std::min<std::size_t>(header.count, table.dense->count());
  const std::size_t each =
      header.type == PsType::kWriteRows
          ? sizeof(RowMeta) + table.sparse->row_floats() * sizeof(float)
          : sizeof(std::uint64_t) + encoded_rows_bytes(header.codec, table.spec.dim, 1);
  return std::min<std::size_t>(header.count, change.payload.size() / each);
}

std::size_t count_fresh(const SparseTable& table, const PsHeader& header, const Change& change) {
  if (header.type == PsType::kPush) return table.count_fresh(change.ids);
  const auto* const metas = reinterpret_cast<const RowMeta*>(change.values.data());
  const std::size_t rows =
      std::min<std::size_t>(header.count, change.values.size() / sizeof(RowMeta));
  std::size_t fresh = 0;
  for (std::size_t i = 0; i < rows; ++i) fresh += table.count_fresh(std::span(&metas[i].id, 1));
  return fresh;
}

}  // namespace

HalfDone memory_is_full(const std::string& where) {
  return HalfDone(str(where, ": the memory of this server is full. Everything acknowledged is in ",
                      "its log, if it has one: start it again with more memory, or more servers ",
                      "from a checkpoint"));
}

InvalidArgument no_memory_for(const TableSpec& spec) {
  return InvalidArgument(str("table '", spec.name, "' does not fit into this server's memory"));
}

bool Store::has_memory_for(const TableSpec& spec) {
  try {
    make(spec);
  } catch (const std::bad_alloc&) {
    return false;
  } catch (const Error&) {
    return true;  // make() will say it again.
  }
  return true;
}

Table& Store::make_or_refuse(const TableSpec& spec) {
  if (!has_memory_for(spec)) throw no_memory_for(spec);
  return make(spec);
}

// What clients say of it themselves does not count.
void Shard::Impl::settle_memory(Frame& change) {
  PsHeader& header = change.header;
  header.flags &= static_cast<std::uint8_t>(~wire::kFoundNoMemory);
  if (header.type == PsType::kMakeTable) {
    const Change make = parse_change(header, change.payload);
    header.a = store.has_memory_for(make.spec) ? 0 : wire::kNoMemory;
  }
  // A round's rows are taken when it is whole: it is late to refuse any of them then.
  const bool takes_rows = has_rows(header) && (header.flags & wire::kHasRound) == 0;
  if (takes_rows && !has_memory_for(change)) refuse_for_memory(change);
}

bool Shard::Impl::has_memory_for(Frame& change) {
  const auto found = store.all().find(change.header.table);
  if (found == store.all().end()) return true;  // There is another answer to this.
  Table& table = found->second;
  const std::size_t rows = count_rows(table, change);
  try {
    reserve(table, change.header, rows, rows);
    return true;
  } catch (const std::bad_alloc&) {
    if (!table.sparse) return false;
  }
  // Most of its ids may be rows already.
  try {
    const Change parsed = parse_change(change.header, change.payload);
    reserve(table, change.header, rows, count_fresh(*table.sparse, change.header, parsed));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Shard::Impl::reserve(Table& table, const PsHeader& change, std::size_t rows,
                          std::size_t fresh) {
  store.reserve(table, change, rows, fresh);
  std::size_t answer = kOutcomeBytes;
  if ((change.flags & wire::kTellsSkipped) != 0) answer += (rows + 63) / 64 * sizeof(std::uint64_t);
  if ((change.flags & wire::kReturnsRows) != 0)
    answer += table.sparse ? encoded_rows_bytes(change.codec, table.spec.dim, rows)
                           : encoded_rows_bytes(change.codec, table.dense->count(), 1);
  if (answer_room.capacity() < answer) answer_room = spares.take(answer);
  answer_room.reserve(answer);
  last_memory.reserve(kLastMemory);
}

// False: it is none of those that can be.
bool Shard::Impl::refuse_for_memory(Frame& change) {
  PsHeader& header = change.header;
  if (!has_rows(header) || (header.flags & wire::kFoundNoMemory) != 0) return false;
  give_back(last_memory);
  wire::Reader in(change.payload);
  get_tail(in);
  header.a = std::exchange(header.count, 0);
  header.flags = wire::kFoundNoMemory;
  change.payload.resize(change.payload.size() - in.left());
  return true;
}

void Shard::Impl::require_memory_was_found(const PsHeader& change) const {
  if ((change.flags & wire::kFoundNoMemory) == 0) return;
  throw InvalidArgument(str("this server has not the memory for a request of ", change.a,
                            change.type == PsType::kPushDense ? " floats" : " rows",
                            ", and has done nothing of it: give it more, or use more servers"));
}

}  // namespace gradring::ps
