#include "ps/client/plain_call.h"

#include <algorithm>

#include "base/config.h"
#include "ps/tables/partition.h"

namespace gradring::ps {

void PlainCall::add(std::uint32_t shard, const wire::PsHeader& header, Bytes head,
                    std::uint64_t rows) {
  Part part;
  part.shard = shard;
  part.header = header;
  part.head = std::move(head);
  part.rows = rows;
  parts_.push_back(std::move(part));
  answers_.emplace_back();
}

void PlainCall::add_to_all(std::uint32_t shards, const wire::PsHeader& header, const Bytes& head) {
  for (std::uint32_t shard = 0; shard < shards; ++shard) add(shard, header, head);
}

void PlainCall::take(std::size_t part, const wire::PsHeader& answer,
                     std::span<const std::byte> payload) {
  answers_[part].header = answer;
  put_bytes(answers_[part].payload, payload);
}

void add_writes(PlainCall& call, const RemoteTable& table, std::span<const RowMeta> metas,
                std::span<const float> floats, std::optional<std::uint64_t> steps) {
  const std::size_t width = metas.empty() ? 0 : floats.size() / metas.size();
  const std::size_t row_bytes = sizeof(RowMeta) + width * sizeof(float);
  const std::size_t most = std::max<std::size_t>(1, limits::kPsPartBytes / row_bytes);
  std::vector<std::vector<std::size_t>> by_shard(table.shards);
  for (std::size_t row = 0; row < metas.size(); ++row)
    by_shard[shard_of(metas[row].id, table.shards)].push_back(row);
  for (std::uint32_t shard = 0; shard < table.shards; ++shard) {
    const auto& rows = by_shard[shard];
    // Also to a shard without rows, if there are steps to tell.
    const std::size_t end = rows.empty() && steps ? 1 : rows.size();
    for (std::size_t first = 0; first < end; first += most) {
      const auto chosen = std::span(rows).subspan(first, std::min(most, rows.size() - first));
      wire::PsHeader header;
      header.type = wire::PsType::kWriteRows;
      table.address(header);
      header.a = steps.value_or(0);
      if (steps) header.flags |= wire::kTellsSteps;
      header.count = static_cast<std::uint32_t>(chosen.size());
      Bytes payload;
      payload.reserve(chosen.size() * row_bytes);
      for (const std::size_t row : chosen) put_bytes(payload, std::as_bytes(metas.subspan(row, 1)));
      for (const std::size_t row : chosen)
        put_bytes(payload, std::as_bytes(floats.subspan(row * width, width)));
      call.add(shard, header, std::move(payload), chosen.size());
    }
  }
}

}  // namespace gradring::ps
