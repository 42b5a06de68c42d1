// The reduction kernels of one instruction set. Each reduce_<isa>.cc defines GRADRING_VECTOR_BYTES
// and includes this file, compiled with that instruction set's flags. What lanes.h says about
// linkage holds here too.
#pragma once

#include "kernels/lanes.h"
#include "kernels/table.h"

namespace gradring::kernels {
namespace {

template <typename Lanes, std::size_t kVectors>
struct Group {
  static constexpr std::size_t kWorks = kVectors * Lanes::kWorks;
  typename Lanes::Work at[kWorks];
};

template <typename Op, typename Lanes, std::size_t kVectors>
GRADRING_INLINE void combine(Group<Lanes, kVectors>& into, const Group<Lanes, kVectors>& other) {
#pragma GCC unroll 8
  for (std::size_t w = 0; w < into.kWorks; ++w)
    into.at[w] = Op::template of<Lanes>(into.at[w], other.at[w]);
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
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v)
      Lanes::load(from + v * Lanes::kBytes, group.at + v * Lanes::kWorks);
    return group;
  }
  GRADRING_INLINE void store(std::byte* to, const Vectors& group) const {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v)
      Lanes::store(to + v * Lanes::kBytes, group.at + v * Lanes::kWorks);
  }
};

template <typename Lanes>
struct Part {
  using Vectors = Group<Lanes, 1>;
  std::size_t bytes;  // Less than Lanes::kBytes.
  GRADRING_INLINE Vectors load(const std::byte* from) const {
    std::byte whole[Lanes::kBytes] = {};
    copy_part<Lanes::kBytes / 2>(whole, from, bytes);
    Vectors group;
    Lanes::load(whole, group.at);
    return group;
  }
  GRADRING_INLINE void store(std::byte* to, const Vectors& group) const {
    std::byte whole[Lanes::kBytes];
    Lanes::store(whole, group.at);
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
#pragma GCC unroll 8
    for (std::size_t s = 1; s < kCount; ++s) combine<Op>(folded, memory.load(source[s] + at));
    return folded;
  }
};

// Four sources a turn: the CPU's prefetcher follows load instructions, and one that visited every
// source in turn would have no stride to find.
struct LeftOfMany {
  const std::byte* const* sources;
  std::size_t source_count;
  template <typename Op, typename Memory>
  GRADRING_INLINE typename Memory::Vectors fold(const Memory& memory, std::size_t at) const {
    auto folded = memory.load(sources[0] + at);
    std::size_t s = 1;
    for (; s + 4 <= source_count; s += 4) {
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) combine<Op>(folded, memory.load(sources[s + i] + at));
    }
    for (; s < source_count; ++s) combine<Op>(folded, memory.load(sources[s] + at));
    return folded;
  }
};

// Four leaves or more, four at a time. `pending` holds finished subtrees of falling size, as the
// ones of a binary counter do: each new four carries upwards.
struct Tree {
  const std::byte* const* sources;
  std::size_t source_count;
  std::size_t leaf_count;

  GRADRING_INLINE Tree(const std::byte* const* sources_in, std::size_t count)
      : sources(sources_in), source_count(count), leaf_count(4) {
    while (leaf_count * 2 <= source_count) leaf_count *= 2;
  }

  template <typename Op, typename Memory>
  GRADRING_INLINE typename Memory::Vectors leaf(const Memory& memory, std::size_t at,
                                                std::size_t index) const {
    auto vectors = memory.load(sources[index] + at);
    if (index + leaf_count < source_count)
      combine<Op>(vectors, memory.load(sources[index + leaf_count] + at));
    return vectors;
  }

  template <typename Op, typename Memory>
  GRADRING_INLINE typename Memory::Vectors fold(const Memory& memory, std::size_t at) const {
    typename Memory::Vectors pending[32];
    std::size_t depth = 0;
    for (std::size_t four = 0;; ++four) {
      auto subtree = leaf<Op>(memory, at, 4 * four);
      combine<Op>(subtree, leaf<Op>(memory, at, 4 * four + 1));
      auto right = leaf<Op>(memory, at, 4 * four + 2);
      combine<Op>(right, leaf<Op>(memory, at, 4 * four + 3));
      combine<Op>(subtree, right);
      for (std::size_t carry = four; carry & 1; carry >>= 1) {
        auto joined = pending[--depth];
        combine<Op>(joined, subtree);
        subtree = joined;
      }
      if (4 * four + 4 == leaf_count) return subtree;
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

// Folds `bytes` bytes, fewer than one vector.
template <typename Lanes, typename Op, typename Shape>
__attribute__((noinline)) void fold_part(const Job& job, std::size_t at, std::size_t bytes) {
  const Part<Lanes> memory{bytes};
  auto folded = Shape{job.sources, job.source_count}.template fold<Op>(memory, at);
  typename QuotientOf<Lanes>::Type(job.divisor).apply(folded);
  memory.store(job.dst + at, folded);
}

// Large buffers start with a part, after which no store crosses a cache line. Returns its bytes.
template <typename Lanes, typename Op, typename Shape>
GRADRING_INLINE std::size_t fold_head(const Job& job) {
  constexpr std::size_t kWorthAligning = 2048;
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(job.dst) % Lanes::kBytes;
  const bool cuts_an_element = head % Lanes::kItemBytes != 0;  // NumPy may give us such memory.
  if (head == 0 || cuts_an_element || job.bytes < kWorthAligning) return 0;
  fold_part<Lanes, Op, Shape>(job, 0, head);
  return head;
}

// What is less than a group of many vectors.
template <typename Lanes, typename Op, typename Shape>
GRADRING_INLINE void fold_rest(const Job& job, std::size_t at) {
  at = fold_groups<Lanes, Op, Shape, 1>(job, at);
  if (at < job.bytes) fold_part<Lanes, Op, Shape>(job, at, job.bytes - at);
}

template <typename Lanes, typename Op>
std::size_t left_groups(const Job& job, std::size_t at) {
  switch (job.source_count) {
    case 2: return fold_groups<Lanes, Op, LeftOf<2>, Lanes::kUnroll>(job, at);
    case 3: return fold_groups<Lanes, Op, LeftOf<3>, Lanes::kUnroll>(job, at);
    case 4: return fold_groups<Lanes, Op, LeftOf<4>, Lanes::kUnroll>(job, at);
    default: return fold_groups<Lanes, Op, LeftOfMany, 2 * Lanes::kUnroll>(job, at);
  }
}

template <typename Lanes, typename Op>
void left(std::byte* dst, const std::byte* const* sources, std::size_t source_count,
          std::size_t bytes, std::uint32_t divisor) {
  const Job job{dst, sources, source_count, bytes, divisor};
  const std::size_t done = left_groups<Lanes, Op>(job, fold_head<Lanes, Op, LeftOfMany>(job));
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
  const std::size_t done =
      fold_groups<Lanes, Op, Tree, Lanes::kUnroll>(job, fold_head<Lanes, Op, Tree>(job));
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
