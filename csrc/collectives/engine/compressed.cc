#include "collectives/engine/compressed.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "collectives/engine/compressed_layout.h"

namespace gradring::collectives {
namespace {

using Bytes = std::unique_ptr<std::byte[]>;

class Reduction {
 public:
  Reduction(const Compressed& what, Rank rank, Rank ranks)
      : what_(what), layout_(what, rank, ranks), rank_(rank), ranks_(ranks) {}

  void run(const std::function<void(const Operation&)>& execute);

 private:
  float* values(Rank part) const { return what_.values + layout_.begin(part); }
  float* residual(Rank part) const {
    return what_.residual == nullptr ? nullptr : what_.residual + layout_.begin(part);
  }
  void encode(Rank part, std::byte* out) const;
  void decode(Rank part, Rank from, const std::byte* in, float* dst, bool adds) const;
  void encode_for_others(std::byte* out) const;
  void add(const std::byte* received) const;
  void divide() const;

  const Compressed& what_;
  const CompressedLayout layout_;
  Rank rank_;
  Rank ranks_;
};

void Reduction::encode(Rank part, std::byte* out) const {
  layout_.write_header(out);
  kernels::encode(what_.codec, values(part), residual(part), layout_.count(part),
                  out + CompressedLayout::kHeaderBytes);
}

void Reduction::decode(Rank part, Rank from, const std::byte* in, float* dst, bool adds) const {
  layout_.check_header(in, from);
  kernels::decode(what_.codec, in + CompressedLayout::kHeaderBytes, layout_.count(part), dst, adds);
}

void Reduction::encode_for_others(std::byte* out) const {
  for (Rank part = 0; part < ranks_; ++part) {
    if (part == rank_) continue;
    encode(part, out);
    out += layout_.bytes(part);
  }
}

// In rank order, this rank's own values where they belong.
void Reduction::add(const std::byte* received) const {
  float* own = values(rank_);
  std::vector<float> sum(layout_.count(rank_));
  for (Rank from = 0; from < ranks_; ++from) {
    if (from == rank_) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
      continue;
    }
    decode(rank_, from, received, sum.data(), true);
    received += layout_.bytes(rank_);
  }
  std::copy(sum.begin(), sum.end(), own);
}

void Reduction::divide() const {
  const double total = what_.divisor_at == nullptr ? 0 : *what_.divisor_at;
  if (total == 0 || total == 1) return;
  const auto divisor = static_cast<float>(total);
  for (std::uint64_t i = 0; i < what_.count; ++i) what_.values[i] /= divisor;
}

void Reduction::run(const std::function<void(const Operation&)>& execute) {
  const Bytes out = std::make_unique_for_overwrite<std::byte[]>(
      std::max(layout_.bytes_of_others(), layout_.bytes(rank_)));
  const Bytes in = std::make_unique_for_overwrite<std::byte[]>(
      std::max(layout_.bytes_received(), layout_.bytes_of_all()));
  encode_for_others(out.get());
  Operation exchange = layout_.exchange();
  exchange.input = out.get();
  exchange.output = in.get();
  execute(exchange);
  add(in.get());
  encode(rank_, out.get());
  Operation spread = layout_.spread();
  spread.input = out.get();
  spread.output = in.get();
  execute(spread);
  const std::byte* at = in.get();
  for (Rank part = 0; part < ranks_; ++part) {
    decode(part, part, at, values(part), false);
    at += layout_.bytes(part);
  }
  divide();
}

}  // namespace

std::uint64_t compressed_bytes(const kernels::Codec& codec, std::uint64_t count, Rank rank,
                               Rank ranks) {
  const CompressedLayout layout({.codec = codec, .count = count}, rank, ranks);
  return layout.bytes_of_others() + static_cast<std::uint64_t>(ranks - 1) * layout.bytes(rank);
}

void all_reduce_compressed(const Compressed& what, Rank rank, Rank ranks,
                           const std::function<void(const Operation&)>& execute) {
  if (ranks == 1) return;
  Reduction(what, rank, ranks).run(execute);
}

}  // namespace gradring::collectives
