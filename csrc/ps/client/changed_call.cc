#include "ps/client/changed_call.h"

#include <algorithm>

#include "base/copy_bytes.h"

namespace gradring::ps {

using wire::PsType;

ChangedCall::ChangedCall(std::shared_ptr<RemoteTable> table, std::span<const std::uint64_t> since,
                         std::span<std::byte> room)
    : Call(str("pull from table '", table->spec.name, "'")),
      table_(std::move(table)),
      room_(room),
      share_bytes_(room.size() / table_->shards / sizeof(std::uint64_t) * sizeof(std::uint64_t)),
      pages_(table_->shards) {
  if (table_->spec.kind != TableKind::kSparse)
    throw InvalidArgument(str("table '", table_->spec.name, "' is dense: it has no rows"));
  if (since.size() != table_->shards)
    throw InvalidArgument(
        str(what(), ": ", since.size(), " stamps for ", table_->shards, " shards"));
  if (share_bytes_ < row_bytes())
    throw InvalidArgument(str(what(), ": ", room.size(), " bytes of room for ", table_->shards,
                              " shards with rows of ", row_bytes(), " bytes"));
  for (std::uint32_t shard = 0; shard < table_->shards; ++shard) {
    Part part;
    part.shard = shard;
    part.header.type = PsType::kPullChanged;
    table_->address(part.header);
    part.header.a = since[shard];
    part.header.b = std::max<std::size_t>(1, share_bytes_ / 2 / row_bytes());
    parts_.push_back(std::move(part));
  }
}

std::size_t ChangedCall::row_bytes() const {
  return sizeof(std::uint64_t) + table_->spec.dim * sizeof(float);
}

std::span<std::byte> ChangedCall::destination(std::size_t part, const wire::PsHeader& answer) {
  if (answer.type != PsType::kChanged || answer.payload_bytes > share_bytes_) return {};
  return room_.subspan(part * share_bytes_, answer.payload_bytes);
}

void ChangedCall::take(std::size_t part, const wire::PsHeader& answer,
                       std::span<const std::byte> payload) {
  if (answer.type != PsType::kChanged) throw ProtocolError("an answer of another kind");
  if (payload.size() != answer.count * row_bytes())
    throw ProtocolError(str("changed rows: ", payload.size(), " bytes for ", answer.count,
                            " rows of ", row_bytes()));
  pages_[part] = {answer.count, answer.a, answer.b == 1, payload.size()};
  std::byte* place = room_.data() + part * share_bytes_;
  if (payload.size() <= share_bytes_ && payload.data() != place)
    copy_bytes(place, payload.data(), payload.size());
}

std::size_t ChangedCall::missing_share_bytes() const {
  const auto largest = std::max_element(
      pages_.begin(), pages_.end(), [](const Page& a, const Page& b) { return a.bytes < b.bytes; });
  return largest->bytes > share_bytes_ ? 2 * largest->bytes : 0;
}

}  // namespace gradring::ps
