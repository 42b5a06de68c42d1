#include "collectives/compressed.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"

namespace gradring::collectives {
namespace {

using Bytes = std::unique_ptr<std::byte[]>;

// In front of every encoded part: ranks must have chosen the same.
struct Header {
  std::uint64_t kind = 0;
  double ratio = 0;
};

class Reduction {
 public:
  Reduction(const Compressed& what, Rank rank, Rank ranks)
      : what_(what), rank_(rank), ranks_(ranks) {}

  void run(const std::function<void(const Operation&)>& execute);

 private:
  std::uint64_t begin(Rank part) const { return chunk_begin(what_.count, ranks_, part); }
  std::size_t count(Rank part) const {
    return static_cast<std::size_t>(begin(part + 1) - begin(part));
  }
  std::size_t bytes(Rank part) const {
    return sizeof(Header) + kernels::encoded_bytes(what_.codec, count(part));
  }
  float* residual(Rank part) const {
    return what_.residual == nullptr ? nullptr : what_.residual + begin(part);
  }
  void encode(Rank part, std::byte* out) const;
  void decode(Rank part, Rank from, const std::byte* in, float* dst, bool adds) const;
  void encode_for_others(std::byte* out) const;
  void add(const std::byte* received) const;
  void divide() const;

  const Compressed& what_;
  Rank rank_;
  Rank ranks_;
};

void Reduction::encode(Rank part, std::byte* out) const {
  const Header header{static_cast<std::uint64_t>(what_.codec.kind), what_.codec.ratio};
  std::memcpy(out, &header, sizeof header);
  kernels::encode(what_.codec, what_.values + begin(part), residual(part), count(part),
                  out + sizeof header);
}

void Reduction::decode(Rank part, Rank from, const std::byte* in, float* dst, bool adds) const {
  Header header;
  std::memcpy(&header, in, sizeof header);
  if (header.kind != static_cast<std::uint64_t>(what_.codec.kind) ||
      header.ratio != what_.codec.ratio)
    throw Mismatch(str("the ranks compress differently: rank ", rank_, " with ",
                       name(what_.codec.kind), " (ratio ", what_.codec.ratio, "), rank ", from,
                       " with another codec or ratio"));
  kernels::decode(what_.codec, in + sizeof header, count(part), dst, adds);
}

void Reduction::encode_for_others(std::byte* out) const {
  for (Rank part = 0; part < ranks_; ++part) {
    if (part == rank_) continue;
    encode(part, out);
    out += bytes(part);
  }
}

// In rank order, this rank's own values where they belong.
void Reduction::add(const std::byte* received) const {
  float* own = what_.values + begin(rank_);
  std::vector<float> sum(count(rank_));
  for (Rank from = 0; from < ranks_; ++from) {
    if (from == rank_) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
      continue;
    }
    decode(rank_, from, received, sum.data(), true);
    received += bytes(rank_);
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
  Operation exchange;
  exchange.request.op = OpKind::kAllToAll;
  exchange.request.dtype = DType::kUInt8;
  Operation spread;
  spread.request.op = OpKind::kAllGather;
  spread.request.dtype = DType::kUInt8;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t all = 0;
  for (Rank part = 0; part < ranks_; ++part) {
    const bool is_other = part != rank_;
    exchange.request.counts.push_back(is_other ? bytes(part) : 0);
    exchange.request.recv_counts.push_back(is_other ? bytes(rank_) : 0);
    spread.request.counts.push_back(bytes(part));
    sent += exchange.request.counts.back();
    received += exchange.request.recv_counts.back();
    all += bytes(part);
  }
  const Bytes out = std::make_unique_for_overwrite<std::byte[]>(std::max(sent, bytes(rank_)));
  const Bytes in = std::make_unique_for_overwrite<std::byte[]>(std::max(received, all));
  encode_for_others(out.get());
  exchange.input = out.get();
  exchange.output = in.get();
  execute(exchange);
  add(in.get());
  encode(rank_, out.get());
  spread.input = out.get();
  spread.output = in.get();
  execute(spread);
  const std::byte* at = in.get();
  for (Rank part = 0; part < ranks_; ++part) {
    decode(part, part, at, what_.values + begin(part), false);
    at += bytes(part);
  }
  divide();
}

}  // namespace

std::uint64_t compressed_bytes(const kernels::Codec& codec, std::uint64_t count, Rank rank,
                               Rank ranks) {
  std::uint64_t sent = 0;
  const auto bytes = [&](Rank part) {
    const auto size = chunk_begin(count, ranks, part + 1) - chunk_begin(count, ranks, part);
    return sizeof(Header) + kernels::encoded_bytes(codec, static_cast<std::size_t>(size));
  };
  for (Rank part = 0; part < ranks; ++part)
    if (part != rank) sent += bytes(part) + bytes(rank);
  return sent;
}

void all_reduce_compressed(const Compressed& what, Rank rank, Rank ranks,
                           const std::function<void(const Operation&)>& execute) {
  if (ranks == 1) return;
  Reduction(what, rank, ranks).run(execute);
}

}  // namespace gradring::collectives
