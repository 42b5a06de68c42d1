#include "ps/client/dense_calls.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/update.h"
#include "ps/protocol/payloads.h"
#include "ps/protocol/row_codec.h"

namespace gradring::ps {
namespace {

using wire::PsType;
using wire::RowCodec;

void require_dense(const RemoteTable& table) {
  if (table.spec.kind != TableKind::kDense)
    throw InvalidArgument(str("table '", table.spec.name, "' is sparse: give it ids"));
}

// A request to every shard that has a part.
std::vector<Part> parts_of(const RemoteTable& table, PsType type, RowCodec codec) {
  std::vector<Part> parts;
  for (std::uint32_t shard = 0; shard < table.shards; ++shard) {
    const DenseRange range = dense_range(table.spec, shard, table.shards);
    if (range.begin == range.end) continue;
    Part part;
    part.shard = shard;
    part.header.type = type;
    part.header.codec = codec;
    table.address(part.header);
    parts.push_back(std::move(part));
  }
  return parts;
}

void unpack(const RemoteTable& table, std::uint32_t shard, RowCodec codec,
            std::span<const std::byte> payload, float* out) {
  const DenseRange range = dense_range(table.spec, shard, table.shards);
  const auto count = static_cast<std::size_t>(range.end - range.begin);
  if (payload.size() != encoded_rows_bytes(codec, count, 1))
    throw ProtocolError(str("an answer of ", payload.size(), " bytes for ", count, " floats"));
  float* to = out + range.begin;
  if (reinterpret_cast<const std::byte*>(to) != payload.data())
    decode_rows(codec, count, 1, payload.data(), to);
}

}  // namespace

PullDenseCall::PullDenseCall(std::shared_ptr<RemoteTable> table, float* out, RowCodec codec,
                             const std::optional<wire::Gate>& gate)
    : Call(str("pull from table '", table->spec.name, "'")),
      table_(std::move(table)),
      out_(out),
      codec_(codec),
      has_gate_(gate.has_value()) {
  require_dense(*table_);
  parts_ = parts_of(*table_, PsType::kPullDense, codec_);
  for (Part& part : parts_) {
    if (!gate) continue;
    part.header.flags = wire::kHasGate;
    put(part.head, *gate);
  }
}

std::span<std::byte> PullDenseCall::destination(std::size_t part, const wire::PsHeader& answer) {
  if (answer.type != PsType::kDense || codec_ != RowCodec::kFloat32) return {};
  const DenseRange range = dense_range(table_->spec, parts_[part].shard, table_->shards);
  return std::as_writable_bytes(
      std::span(out_ + range.begin, static_cast<std::size_t>(range.end - range.begin)));
}

void PullDenseCall::take(std::size_t part, const wire::PsHeader& answer,
                         std::span<const std::byte> payload) {
  if (answer.type != PsType::kDense) throw ProtocolError("an answer of another kind");
  unpack(*table_, parts_[part].shard, codec_, payload, out_);
  table_->note_seen(parts_[part].shard, answer.a);
  version_ = std::min(version_, answer.a);
}

PushDenseCall::PushDenseCall(std::shared_ptr<RemoteTable> table, const Arrays& arrays,
                             RowCodec codec, const std::optional<wire::Round>& round)
    : Call(str("push to table '", table->spec.name, "'")),
      table_(std::move(table)),
      arrays_(arrays),
      codec_(codec) {
  require_dense(*table_);
  parts_ = parts_of(*table_, PsType::kPushDense, codec_);
  is_refused_ = parts_.size() > 1 && !kernels::is_finite(arrays_.gradient, table_->spec.count);
  encoded_.resize(parts_.size());
  const std::uint64_t nth = table_->next_push();
  for (Part& part : parts_) {
    const DenseRange range = dense_range(table_->spec, part.shard, table_->shards);
    part.header.count = static_cast<std::uint32_t>(range.end - range.begin);
    part.header.a = arrays_.seen.empty() ? table_->seen(part.shard) : arrays_.seen[part.shard];
    part.header.b = nth;
    part.header.flags = wire::kIsLastPart;
    if (arrays_.rows_after != nullptr) part.header.flags |= wire::kReturnsRows;
    if (round) {
      part.header.flags |= wire::kHasRound;
      put(part.head, *round);
    }
    part.rows = part.header.count;
    report_.rows += part.rows;
  }
}

Body PushDenseCall::body(std::size_t part) {
  const DenseRange range = dense_range(table_->spec, parts_[part].shard, table_->shards);
  const std::span<const float> floats(arrays_.gradient + range.begin,
                                      static_cast<std::size_t>(range.end - range.begin));
  if (codec_ == RowCodec::kFloat32 && !is_refused_) return {std::as_bytes(floats), {}};
  Bytes& encoded = encoded_[part];
  if (encoded.empty()) {
    Floats marked;
    if (is_refused_) {
      marked.assign(floats.begin(), floats.end());
      marked[0] = std::numeric_limits<float>::quiet_NaN();
    }
    const float* const values = is_refused_ ? marked.data() : floats.data();
    encoded.resize(encoded_rows_bytes(codec_, floats.size(), 1));
    encode_rows(codec_, floats.size(), 1, values, nullptr, encoded.data());
  }
  return {encoded, {}};
}

void PushDenseCall::release(std::size_t part) {
  give_back(encoded_[part]);
}

void PushDenseCall::take(std::size_t part, const wire::PsHeader& answer,
                         std::span<const std::byte> payload) {
  if (answer.type != PsType::kDone) throw ProtocolError("an answer of another kind");
  wire::Reader in(payload);
  const Outcome outcome = get_outcome(in);
  report_.refused = std::max(report_.refused, outcome.refused);  // All of it or nothing.
  report_.staleness = std::max(report_.staleness, outcome.staleness);
  const auto rest = payload.subspan(kOutcomeBytes);
  if (arrays_.rows_after != nullptr)
    unpack(*table_, parts_[part].shard, codec_, rest, arrays_.rows_after);
  else if (!rest.empty())
    throw ProtocolError("an answer that is too long");
}

}  // namespace gradring::ps
