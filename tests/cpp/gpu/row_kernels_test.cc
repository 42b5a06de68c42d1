// The GPU's kernels for lists of ids and rows, run in the block emulator: ids are grouped as a
// stable sort groups them, rows are added in the order of ps/tables/merge.h with its bits, rows
// come and go where their slots say.
#include "emulator/cuda_emulation.h"
// After CUDA's names.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <random>
#include <vector>

#include "base/types.h"
#include "cuda/rows.h"
#include "kernels/half.h"
#include "ps/tables/merge.h"
#include "support/emulated_orders.h"
#include "support/odd_floats.h"
#include "support/placed.h"

namespace gradring::testing::row_kernels_test {
namespace {

using Ids = std::vector<std::uint64_t>;
using Words = std::vector<std::uint32_t>;

enum class IdKind { kSame, kDistinct, kFew, kZipf, kEnds, kAnyBits };
constexpr IdKind kAllIds[] = {IdKind::kSame, IdKind::kDistinct, IdKind::kFew,
                              IdKind::kZipf, IdKind::kEnds,     IdKind::kAnyBits};

Ids some_ids(IdKind kind, std::size_t count, std::mt19937_64& dice) {
  Ids ids(count);
  for (std::size_t i = 0; i < count; ++i) {
    switch (kind) {
      case IdKind::kSame: ids[i] = 0xABCDEF0123456789u; break;
      case IdKind::kDistinct: ids[i] = (count - i) * 0x9E3779B97F4A7C15u; break;
      case IdKind::kFew: ids[i] = dice() % 300; break;
      case IdKind::kZipf: ids[i] = count / (1 + dice() % count); break;
      case IdKind::kEnds: ids[i] = dice() % 2 == 0 ? 0 : UINT64_MAX; break;
      case IdKind::kAnyBits: ids[i] = dice() >> (dice() % 60); break;
    }
  }
  return ids;
}

struct Groups {
  Ids unique;
  Words starts;
  Words positions;
  Words places;
};

Groups grouped(const Ids& ids) {
  std::map<std::uint64_t, Words> of;
  for (std::uint32_t i = 0; i < ids.size(); ++i) of[ids[i]].push_back(i);
  Groups groups;
  groups.places.resize(ids.size());
  for (const auto& [id, positions] : of) {
    for (const std::uint32_t position : positions)
      groups.places[position] = static_cast<std::uint32_t>(groups.unique.size());
    groups.unique.push_back(id);
    groups.starts.push_back(static_cast<std::uint32_t>(groups.positions.size()));
    groups.positions.insert(groups.positions.end(), positions.begin(), positions.end());
  }
  groups.starts.push_back(static_cast<std::uint32_t>(groups.positions.size()));
  return groups;
}

template <typename T>
std::vector<T> first_of(const Placed<T>& placed, std::size_t count) {
  auto values = placed.values();
  values.resize(count);
  return values;
}

void check_unique(const Ids& given) {
  const Groups expected = grouped(given);
  Placed<std::uint64_t> ids(given, 8);
  auto unique = Placed<std::uint64_t>::of_size(given.size(), 0);
  auto starts = Placed<std::uint32_t>::of_size(given.size() + 1, 4);
  auto positions = Placed<std::uint32_t>::of_size(given.size(), 8);
  auto places = Placed<std::uint32_t>::of_size(given.size(), 12);
  auto scratch = Placed<std::byte>::of_size(cuda::unique_scratch_bytes(given.size()), 0);
  std::uint32_t count = 7;
  const gradring_unique call = {ids.data(),       given.size(),  unique.data(), starts.data(),
                                positions.data(), places.data(), &count,        scratch.data()};
  REQUIRE(cuda::unique(0, &call, nullptr) == 0);
  REQUIRE(count == expected.unique.size());
  CHECK(first_of(unique, count) == expected.unique);
  CHECK(first_of(starts, count + 1) == expected.starts);
  CHECK(positions.values() == expected.positions);
  CHECK(places.values() == expected.places);
  CHECK(ids.values() == given);
}

TEST_CASE("unique: equal ids are grouped, their positions grow") {
  std::mt19937_64 dice(1);
  in_every_order([&] {
    for (const IdKind kind : kAllIds) {
      CAPTURE(static_cast<int>(kind));
      check_unique(some_ids(kind, 257, dice));
    }
    // Parts of a tile, whole ones and a little more; eight passes of a sort are a lot to emulate.
    for (const std::size_t count : {0, 1, 2, 33, 2048, 2049}) {
      CAPTURE(count);
      check_unique(some_ids(kAllIds[dice() % 6], count, dice));
    }
  });
}

TEST_CASE("unique: many tiles") {
  std::mt19937_64 dice(2);
  emulator::set_order(emulator::Order::kRandom, 5);
  check_unique(some_ids(IdKind::kZipf, 30'000, dice));
  check_unique(some_ids(IdKind::kAnyBits, 9'000, dice));
  emulator::set_order(emulator::Order::kForward);
}

std::vector<std::uint16_t> halves(const std::vector<float>& from, DType dtype) {
  std::vector<std::uint16_t> to;
  for (const float value : from)
    to.push_back(dtype == DType::kFloat16 ? kernels::Float16::rounded(value)
                                          : kernels::BFloat16::rounded(value));
  return to;
}

std::vector<float> widened(const std::vector<std::uint16_t>& from, DType dtype) {
  std::vector<float> to;
  for (const std::uint16_t item : from)
    to.push_back(dtype == DType::kFloat16 ? kernels::Float16::widened(item)
                                          : kernels::BFloat16::widened(item));
  return to;
}

// What a client would send: the sums of ps/tables/merge.h, in the order of the ids' values.
std::vector<float> merged(const Ids& ids, const std::vector<float>& rows, std::size_t dim) {
  const ps::Distinct distinct(ids, 1);
  std::vector<float> sums(distinct.ids().size() * dim);
  distinct.sum(0, distinct.ids().size(), rows.data(), dim, sums.data());
  std::vector<std::size_t> order(distinct.ids().size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return distinct.ids()[a] < distinct.ids()[b]; });
  std::vector<float> sorted;
  for (const std::size_t place : order)
    sorted.insert(sorted.end(), sums.begin() + static_cast<std::ptrdiff_t>(place * dim),
                  sums.begin() + static_cast<std::ptrdiff_t>((place + 1) * dim));
  return sorted;
}

void check_sum(const Ids& ids, std::size_t dim, DType dtype, Floats kind, std::size_t offset) {
  auto values = floats(kind, ids.size() * dim, static_cast<std::uint32_t>(dim));
  const std::vector<std::uint16_t> narrow = halves(values, dtype);
  if (dtype != DType::kFloat32) values = widened(narrow, dtype);
  const Groups groups = grouped(ids);
  const std::vector<float> expected = merged(ids, values, dim);
  Placed<float> wide_rows(values, offset);
  Placed<std::uint16_t> narrow_rows(narrow, offset);
  auto sums = Placed<float>::of_size(groups.unique.size() * dim, offset);
  const auto count = static_cast<std::uint32_t>(groups.unique.size());
  gradring_segment_sum call = {};
  call.rows =
      dtype == DType::kFloat32 ? static_cast<const void*>(wide_rows.data()) : narrow_rows.data();
  call.dtype = static_cast<std::int32_t>(dtype);
  call.dim = static_cast<std::uint32_t>(dim);
  call.starts = groups.starts.data();
  call.positions = groups.positions.data();
  call.unique_count = dim % 2 == 0 ? &count : nullptr;
  call.most = dim % 2 == 0 ? ids.size() : count;
  call.sums = sums.data();
  REQUIRE(cuda::segment_sum(0, &call, nullptr) == 0);
  CHECK(same_numbers(sums.values(), expected));
  CHECK(sums.is_intact());
}

TEST_CASE("segment sum: the client's additions in the client's order") {
  std::mt19937_64 dice(3);
  in_every_order([&] {
    for (const std::size_t dim : {1, 2, 3, 4, 8, 33, 64, 130}) {
      CAPTURE(dim);
      for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        const IdKind kind = kAllIds[dice() % 6];
        CAPTURE(static_cast<int>(kind));
        const Ids ids = some_ids(kind, 1 + dice() % 200, dice);
        check_sum(ids, dim, dtype, kAllFloats[dice() % 6], dice() % 2 == 0 ? 0 : 4);
      }
    }
  });
}

TEST_CASE("segment sum: an id that is there very often") {
  std::mt19937_64 dice(4);
  in_every_order([&] {
    for (const std::size_t dim : {1, 32, 40}) {
      check_sum(some_ids(IdKind::kSame, 127 + dice() % 3, dice), dim, DType::kFloat32,
                Floats::kNormal, 0);
      check_sum(some_ids(IdKind::kEnds, 700, dice), dim, DType::kBFloat16, Floats::kOdd, 0);
    }
  });
}

TEST_CASE("segment sum: rows wider than a block") {
  std::mt19937_64 dice(5);
  check_sum(some_ids(IdKind::kFew, 20, dice), 1100, DType::kFloat32, Floats::kNormal, 0);
  check_sum(some_ids(IdKind::kFew, 20, dice), 301, DType::kFloat32, Floats::kNormal, 0);
}

// Some rows of a table, in any order, some of them missing; none twice.
struct Slots {
  static constexpr std::uint64_t kRows = 40;
  Ids wide;
  Words narrow;
  std::uint64_t missing = 0;

  explicit Slots(std::mt19937_64& dice) {
    for (std::uint64_t row = 0; row < kRows + 3; ++row)
      if (dice() % 3 != 0) wide.push_back(row);
    if (dice() % 2 == 0) wide.push_back(0xFFFFFFFFu);
    std::shuffle(wide.begin(), wide.end(), dice);
    for (const std::uint64_t slot : wide) {
      narrow.push_back(static_cast<std::uint32_t>(slot));
      missing += slot >= kRows ? 1 : 0;
    }
  }
  gradring_row_slots call(std::size_t dim, bool is_wide, std::uint64_t* missing_at) const {
    return {is_wide ? static_cast<const void*>(wide.data()) : narrow.data(),
            is_wide ? 8 : 4,
            static_cast<std::uint32_t>(dim),
            kRows,
            wide.size(),
            nullptr,
            missing_at};
  }
};

// A value's item of a type, as bytes, after a cast from another.
template <typename From, typename To>
void check_gather(DType from, DType to, std::size_t dim, std::size_t offset,
                  std::mt19937_64& dice) {
  const std::size_t stride = dim + (dice() % 2 == 0 ? 0 : 8);
  const auto values =
      floats(Floats::kOdd, Slots::kRows * stride, static_cast<std::uint32_t>(dice()));
  std::vector<typename From::Item> items;
  for (const float value : values) {
    if constexpr (std::is_same_v<From, kernels::Float32>) {
      items.push_back(value);
    } else {
      items.push_back(From::rounded(value));
    }
  }
  const Slots slots(dice);
  std::vector<typename To::Item> expected;
  for (const std::uint64_t slot : slots.wide) {
    for (std::size_t i = 0; i < dim; ++i) {
      const typename From::Item item = slot < Slots::kRows ? items[slot * stride + i] : 0;
      if constexpr (std::is_same_v<From, To>) {
        expected.push_back(item);
      } else {
        expected.push_back(To::rounded(From::widened(item)));
      }
    }
  }
  Placed<typename From::Item> table(items, offset);
  auto out = Placed<typename To::Item>::of_size(expected.size(), offset);
  std::uint64_t missing = 5;
  const gradring_gather_rows call = {slots.call(dim, dice() % 2 == 0, &missing),
                                     table.data(),
                                     static_cast<std::int32_t>(from),
                                     static_cast<std::int32_t>(to),
                                     stride,
                                     out.data()};
  REQUIRE(cuda::gather_rows(0, &call, nullptr) == 0);
  CHECK(same_bits(out.values(), expected));
  CHECK(out.is_intact());
  CHECK(missing == 5 + slots.missing);
}

TEST_CASE("gather: rows where the slots say, cast, zeros where they are missing") {
  using kernels::BFloat16;
  using kernels::Float16;
  using kernels::Float32;
  std::mt19937_64 dice(6);
  in_every_order([&] {
    for (const std::size_t dim : {1, 3, 4, 8, 12, 16, 64, 65}) {
      CAPTURE(dim);
      const std::size_t offset = dice() % 2 == 0 ? 0 : 4;
      check_gather<Float32, Float32>(DType::kFloat32, DType::kFloat32, dim, offset, dice);
      check_gather<Float32, Float16>(DType::kFloat32, DType::kFloat16, dim, offset, dice);
      check_gather<Float32, BFloat16>(DType::kFloat32, DType::kBFloat16, dim, offset, dice);
      check_gather<BFloat16, Float32>(DType::kBFloat16, DType::kFloat32, dim, offset, dice);
      check_gather<Float16, BFloat16>(DType::kFloat16, DType::kBFloat16, dim, offset, dice);
      check_gather<BFloat16, BFloat16>(DType::kBFloat16, DType::kBFloat16, dim, offset, dice);
    }
  });
}

TEST_CASE("put: rows go where the slots say, and nothing else changes") {
  std::mt19937_64 dice(7);
  in_every_order([&] {
    for (const std::size_t dim : {1, 4, 6, 128}) {
      const std::size_t stride = dim + dice() % 2 * 4;
      const auto before = floats(Floats::kOdd, Slots::kRows * stride, 1);
      const Slots slots(dice);
      const auto rows = floats(Floats::kOdd, slots.wide.size() * dim, 2);
      std::vector<float> expected = before;
      for (std::size_t i = 0; i < slots.wide.size(); ++i)
        if (slots.wide[i] < Slots::kRows)
          std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(i * dim), dim,
                      expected.begin() + static_cast<std::ptrdiff_t>(slots.wide[i] * stride));
      Placed<float> table(before, 0);
      std::uint64_t missing = 0;
      const gradring_put_rows call = {slots.call(dim, false, &missing), table.data(), stride,
                                      rows.data()};
      REQUIRE(cuda::put_rows(0, &call, nullptr) == 0);
      CHECK(same_bits(table.values(), expected));
      CHECK(missing == slots.missing);
    }
  });
}

}  // namespace
}  // namespace gradring::testing::row_kernels_test
