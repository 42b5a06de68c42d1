// The reduction kernels of one instruction set. Each reduce_<isa>.cc defines GRADRING_VECTOR_BYTES
// and GRADRING_TABLE and includes this file, compiled with that instruction set's flags. What
// lanes.h says about linkage holds here too.
#pragma once

#include "kernels/lanes.h"
#include "kernels/table.h"

namespace gradring::kernels {
namespace {

// Vectors that travel together, to hide the latency of one behind the others.
inline constexpr std::size_t kUnroll = 4;

template <typename Lanes, std::size_t kVectors>
struct Group {
  typename Lanes::Work at[kVectors];
};

template <typename Op, typename Lanes, std::size_t kVectors>
GRADRING_INLINE void combine(Group<Lanes, kVectors>& into, const Group<Lanes, kVectors>& other) {
#pragma GCC unroll 4
  for (std::size_t v = 0; v < kVectors; ++v)
    into.at[v] = Op::template of<Lanes>(into.at[v], other.at[v]);
}

// Moves less than 2 * kPiece bytes in powers of two: a call to memcpy would cost more than the sum.
template <std::size_t kPiece>
GRADRING_INLINE void copy_part(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes & kPiece) {
    __builtin_memcpy(to, from, kPiece);
    to += kPiece;
    from += kPiece;
  }
  if constexpr (kPiece > 1) copy_part<kPiece / 2>(to, from, bytes);
}

// How a fold reaches memory: whole groups, or fewer bytes than one vector. A part goes through a
// whole vector with zeros behind it, so that its elements see the same instructions as all others.
template <typename Lanes, std::size_t kVectors>
struct Whole {
  using Vectors = Group<Lanes, kVectors>;
  GRADRING_INLINE Vectors load(const std::byte* from) const {
    Vectors group;
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) group.at[v] = Lanes::load(from + v * Lanes::kBytes);
    return group;
  }
  GRADRING_INLINE void store(std::byte* to, const Vectors& group) const {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) Lanes::store(to + v * Lanes::kBytes, group.at[v]);
  }
};

template <typename Lanes>
struct Part {
  using Vectors = Group<Lanes, 1>;
  std::size_t bytes;  // Less than Lanes::kBytes.
  GRADRING_INLINE Vectors load(const std::byte* from) const {
    std::byte whole[Lanes::kBytes] = {};
    copy_part<Lanes::kBytes / 2>(whole, from, bytes);
    return {Lanes::load(whole)};
  }
  GRADRING_INLINE void store(std::byte* to, const Vectors& group) const {
    std::byte whole[Lanes::kBytes];
    Lanes::store(whole, group.at[0]);
    copy_part<Lanes::kBytes / 2>(to, whole, bytes);
  }
};

// Shapes: the order in which operands meet. Each keeps its own copy of the pointers where their
// number is known, because the compiler must assume that a store to dst changes the caller's list.

template <std::size_t kCount>
struct LeftOf {
  const std::byte* source[kCount];
  GRADRING_INLINE LeftOf(const std::byte* const* sources, std::size_t) {
    for (std::size_t s = 0; s < kCount; ++s) source[s] = sources[s];
  }
  template <typename Op, typename Memory>
  GRADRING_INLINE typename Memory::Vectors fold(const Memory& memory, std::size_t at) const {
    auto folded = memory.load(source[0] + at);
#pragma GCC unroll 4
    for (std::size_t s = 1; s < kCount; ++s) combine<Op>(folded, memory.load(source[s] + at));
    return folded;
  }
};

struct LeftOfMany {
  const std::byte* const* sources;
  std::size_t source_count;
  template <typename Op, typename Memory>
  GRADRING_INLINE typename Memory::Vectors fold(const Memory& memory, std::size_t at) const {
    auto folded = memory.load(sources[0] + at);
    for (std::size_t s = 1; s < source_count; ++s)
      combine<Op>(folded, memory.load(sources[s] + at));
    return folded;
  }
};

// The tree without the tree: `pending` holds finished subtrees of falling size, as the ones of a
// binary counter of leaves do; a new leaf carries upwards.
struct Tree {
  const std::byte* const* sources;
  std::size_t source_count;
  template <typename Op, typename Memory>
  GRADRING_INLINE typename Memory::Vectors fold(const Memory& memory, std::size_t at) const {
    constexpr std::size_t kMaxDepth = 32;
    typename Memory::Vectors pending[kMaxDepth];
    std::size_t leaves = 1;
    while (leaves * 2 <= source_count) leaves *= 2;
    std::size_t depth = 0;
    for (std::size_t leaf = 0;; ++leaf) {
      auto subtree = memory.load(sources[leaf] + at);
      if (leaf + leaves < source_count)
        combine<Op>(subtree, memory.load(sources[leaf + leaves] + at));
      for (std::size_t carry = leaf; carry & 1; carry >>= 1) {
        auto joined = pending[--depth];
        combine<Op>(joined, subtree);
        subtree = joined;
      }
      if (leaf + 1 == leaves) return subtree;
      pending[depth++] = subtree;
    }
  }
};

// Division of floats before they are rounded to memory. Multiplying by the reciprocal of a power
// of two is exact where dividing is, and rounds alike where it is not.
template <typename Lanes>
class Quotient {
 public:
  GRADRING_INLINE explicit Quotient(std::uint32_t divisor)
      : is_one_(divisor == 1),
        is_power_of_two_((divisor & (divisor - 1)) == 0),
        divisor_(static_cast<typename Lanes::Item>(divisor)) {}
  template <std::size_t kVectors>
  GRADRING_INLINE void apply(Group<Lanes, kVectors>& group) const {
    if (is_one_) return;
    if (is_power_of_two_) {
      for (auto& work : group.at) work *= 1 / divisor_;
    } else {
      for (auto& work : group.at) work /= divisor_;
    }
  }

 private:
  bool is_one_;
  bool is_power_of_two_;
  typename Lanes::Item divisor_;
};

struct NoQuotient {
  GRADRING_INLINE explicit NoQuotient(std::uint32_t) {}
  template <typename AnyGroup>
  GRADRING_INLINE void apply(AnyGroup&) const {}
};

template <typename Lanes, bool kIsFloat = Lanes::kIsFloat>
struct QuotientOf {
  using Type = NoQuotient;
};
template <typename Lanes>
struct QuotientOf<Lanes, true> {
  using Type = Quotient<Lanes>;
};

struct Job {
  std::byte* dst;
  const std::byte* const* sources;
  std::size_t source_count;
  std::size_t bytes;
  std::uint32_t divisor;
};

// Folds from byte `at` on for as long as `memory` moves whole groups, and returns where it stopped.
// Reads every operand of a group before it writes the group: dst may be one of the sources.
template <typename Lanes, typename Op, typename Shape, std::size_t kVectors>
GRADRING_INLINE std::size_t fold_groups(const Job& job, std::size_t at) {
  constexpr std::size_t kGroupBytes = kVectors * Lanes::kBytes;
  constexpr Whole<Lanes, kVectors> kMemory;
  const Shape shape{job.sources, job.source_count};
  const typename QuotientOf<Lanes>::Type divide(job.divisor);
  std::byte* const dst = job.dst;
  for (const std::size_t bytes = job.bytes; at + kGroupBytes <= bytes; at += kGroupBytes) {
    auto folded = shape.template fold<Op>(kMemory, at);
    divide.apply(folded);
    kMemory.store(dst + at, folded);
  }
  return at;
}

// Less than a group, for any number of sources.
template <typename Lanes, typename Op, typename Shape>
__attribute__((noinline)) void fold_rest(const Job& job, std::size_t at) {
  at = fold_groups<Lanes, Op, Shape, 1>(job, at);
  if (at == job.bytes) return;
  const Part<Lanes> memory{job.bytes - at};
  auto folded = Shape{job.sources, job.source_count}.template fold<Op>(memory, at);
  typename QuotientOf<Lanes>::Type(job.divisor).apply(folded);
  memory.store(job.dst + at, folded);
}

template <typename Lanes, typename Op>
std::size_t left_groups(const Job& job) {
  switch (job.source_count) {
    case 2: return fold_groups<Lanes, Op, LeftOf<2>, kUnroll>(job, 0);
    case 3: return fold_groups<Lanes, Op, LeftOf<3>, kUnroll>(job, 0);
    case 4: return fold_groups<Lanes, Op, LeftOf<4>, kUnroll>(job, 0);
    default: return fold_groups<Lanes, Op, LeftOfMany, kUnroll>(job, 0);
  }
}

template <typename Lanes, typename Op>
void left(std::byte* dst, const std::byte* const* sources, std::size_t source_count,
          std::size_t bytes, std::uint32_t divisor) {
  const Job job{dst, sources, source_count, bytes, divisor};
  const std::size_t done = left_groups<Lanes, Op>(job);
  if (done < bytes) fold_rest<Lanes, Op, LeftOfMany>(job, done);
}

template <typename Lanes, typename Op>
void tree(std::byte* dst, const std::byte* const* sources, std::size_t source_count,
          std::size_t bytes, std::uint32_t divisor) {
  if (source_count <= 2) return left<Lanes, Op>(dst, sources, source_count, bytes, divisor);
  if (source_count == 3) {  // (s0 + s2) + s1.
    const std::byte* const reordered[] = {sources[0], sources[2], sources[1]};
    return left<Lanes, Op>(dst, reordered, source_count, bytes, divisor);
  }
  const Job job{dst, sources, source_count, bytes, divisor};
  const std::size_t done = fold_groups<Lanes, Op, Tree, kUnroll>(job, 0);
  if (done < bytes) fold_rest<Lanes, Op, Tree>(job, done);
}

// Computes in Wide, in which the quotient of any two values is exact or truncates as integer
// division does; float and double divide in vectors, integers cannot.
template <typename T, typename Wide>
void divide(std::byte* dst, std::size_t bytes, std::uint32_t divisor) {
  for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
    const T quotient =
        static_cast<T>(static_cast<Wide>(read_as<T>(dst + at)) / static_cast<Wide>(divisor));
    __builtin_memcpy(dst + at, &quotient, sizeof(T));
  }
}

constexpr std::size_t index(DType dtype) {
  return static_cast<std::size_t>(dtype);
}
constexpr std::size_t index(ReduceOp op) {
  return static_cast<std::size_t>(op);
}

template <typename Lanes, typename Op>
constexpr void put(Table& table, DType dtype, ReduceOp op) {
  table.left[index(dtype)][index(op)] = left<Lanes, Op>;
  table.tree[index(dtype)][index(op)] = tree<Lanes, Op>;
}

template <typename Arithmetic, typename Ordered>
constexpr void put_arithmetic(Table& table, DType dtype) {
  put<Arithmetic, Sum>(table, dtype, ReduceOp::kSum);
  put<Arithmetic, Sum>(table, dtype, ReduceOp::kAvg);
  put<Arithmetic, Prod>(table, dtype, ReduceOp::kProd);
  put<Ordered, Min>(table, dtype, ReduceOp::kMin);
  put<Ordered, Max>(table, dtype, ReduceOp::kMax);
}

// Two's complement adds and multiplies signed numbers as unsigned ones.
template <typename Signed, typename Unsigned, typename Wide>
constexpr void put_integer(Table& table, DType dtype) {
  using Bytes = IntegerLanes<std::uint8_t>;
  put_arithmetic<IntegerLanes<Unsigned>, IntegerLanes<Signed>>(table, dtype);
  put<Bytes, Band>(table, dtype, ReduceOp::kBand);
  put<Bytes, Bor>(table, dtype, ReduceOp::kBor);
  put<Bytes, Bxor>(table, dtype, ReduceOp::kBxor);
  table.divide[index(dtype)] = divide<Signed, Wide>;
}

constexpr void put_bool(Table& table) {
  constexpr ReduceOp kAny[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBor};
  constexpr ReduceOp kAll[] = {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kBand};
  for (const ReduceOp op : kAny) put<BoolLanes, Bor>(table, DType::kBool, op);
  for (const ReduceOp op : kAll) put<BoolLanes, Band>(table, DType::kBool, op);
  put<BoolLanes, Bxor>(table, DType::kBool, ReduceOp::kBxor);
}

constexpr Table make_table(const char* isa) {
  Table table;
  table.isa = isa;
  put_arithmetic<FloatLanes<double>, FloatLanes<double>>(table, DType::kFloat64);
  put_arithmetic<FloatLanes<float>, FloatLanes<float>>(table, DType::kFloat32);
  put_arithmetic<Float16Lanes, Float16Lanes>(table, DType::kFloat16);
  put_arithmetic<BFloat16Lanes, BFloat16Lanes>(table, DType::kBFloat16);
  put_integer<std::int8_t, std::uint8_t, float>(table, DType::kInt8);
  put_integer<std::int16_t, std::uint16_t, float>(table, DType::kInt16);
  put_integer<std::int32_t, std::uint32_t, double>(table, DType::kInt32);
  put_integer<std::int64_t, std::uint64_t, std::int64_t>(table, DType::kInt64);
  put_integer<std::uint8_t, std::uint8_t, float>(table, DType::kUInt8);
  put_bool(table);
  return table;
}

}  // namespace
}  // namespace gradring::kernels
