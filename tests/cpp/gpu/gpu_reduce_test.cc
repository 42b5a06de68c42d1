// k vectors folded on a GPU give the bits that kernels::reduce gives, in every order of threads;
// what a check says of tensors, and the order of its sum of squares. The kernels run in the block
// emulator, or on a GPU (support/gpu_memory.h).
#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <type_traits>
#include <vector>

#include "emulator/block.h"
#include "gpu/chunks.h"
#include "kernels/reduce.h"
#include "support/gpu_memory.h"

namespace gradring::gpu_reduce_test {
namespace {

using namespace gpu_test;

struct ReduceCase {
  unsigned sources = 2;
  std::size_t count = 1000;
  ReduceOp op = ReduceOp::kSum;
  std::uint32_t divisor = 1;
  std::size_t shift = 0;  // In items: how far the vectors lie off 16 bytes.
  float scale = 1;
  bool in_place = false;
};

// By kernels::reduce in From's float: what From's own reduction rounds to memory is rounded to To.
template <typename From, typename To>
std::vector<typename To::Item> reduced(const std::vector<std::vector<typename From::Item>>& sources,
                                       const ReduceCase& test) {
  using Work = typename From::Work;
  std::vector<std::vector<Work>> wide(sources.size());
  std::vector<const std::byte*> pointers;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    for (const auto item : sources[s]) wide[s].push_back(static_cast<Work>(value_of<From>(item)));
    pointers.push_back(reinterpret_cast<const std::byte*>(wide[s].data()));
  }
  std::vector<Work> folded(test.count);
  const DType dtype = sizeof(Work) == 8 ? DType::kFloat64 : DType::kFloat32;
  kernels::reduce(reinterpret_cast<std::byte*>(folded.data()), pointers, test.count,
                  {dtype, test.op, kernels::Fold::kLeft, test.divisor});
  std::vector<typename To::Item> result;
  for (const Work value : folded)
    result.push_back(
        item_of<To>(static_cast<typename To::Work>(value * static_cast<Work>(test.scale))));
  return result;
}

// The same by the CPU's own call, for a dtype to itself.
template <typename Type>
std::vector<typename Type::Item> reduced_there(
    const std::vector<std::vector<typename Type::Item>>& sources, const ReduceCase& test) {
  std::vector<const std::byte*> pointers;
  for (const auto& source : sources)
    pointers.push_back(reinterpret_cast<const std::byte*>(source.data()));
  std::vector<typename Type::Item> result(test.count);
  kernels::reduce(reinterpret_cast<std::byte*>(result.data()), pointers, test.count,
                  {kDTypeOf<Type>, test.op, kernels::Fold::kLeft, test.divisor});
  return result;
}

template <typename From, typename To>
void check_reduce(const ReduceCase& test) {
  std::vector<std::vector<typename From::Item>> values;
  std::vector<Array<typename From::Item>> arrays;
  gradring_reduce call = {};
  for (unsigned s = 0; s < test.sources; ++s) {
    values.push_back(random_items<From>(test.count, 100 * test.sources + s));
    arrays.emplace_back(values[s], (test.shift * (s + 1)) * sizeof(typename From::Item) % 16);
    call.fold.sources[s] = arrays[s].data();
  }
  const Array<typename To::Item> dst(std::vector<typename To::Item>(test.count),
                                     test.shift * sizeof(typename To::Item) % 16);
  const Array<float> scale(std::vector<float>{test.scale});
  const Array<std::uint32_t> nonfinite(std::vector<std::uint32_t>{0});
  call.fold.source_count = test.sources;
  call.fold.divisor = test.divisor;
  call.fold.from = static_cast<int>(kDTypeOf<From>);
  call.fold.scale = test.scale == 1 ? nullptr : scale.data();
  call.fold.count = test.count;
  call.op = static_cast<int>(test.op);
  call.to = static_cast<int>(kDTypeOf<To>);
  call.dst = test.in_place ? static_cast<void*>(arrays.back().data()) : dst.data();
  call.nonfinite = nonfinite.data();
  REQUIRE(Device::get().streaming().reduce(0, &call, Device::get().stream()) == 0);

  CAPTURE(name(kDTypeOf<From>));
  CAPTURE(name(kDTypeOf<To>));
  CAPTURE(name(test.op));
  CAPTURE(test.sources);
  CAPTURE(test.count);
  CAPTURE(test.divisor);
  auto expected = reduced<From, To>(values, test);
  std::vector<typename To::Item> result = dst.read();
  if constexpr (std::is_same_v<From, To>) {
    if (test.scale == 1) expected = reduced_there<From>(values, test);
    if (test.in_place) result = arrays.back().read();
  }
  CHECK(is_same(result, expected));
  bool is_bad = false;
  for (const auto item : expected) is_bad = is_bad || !std::isfinite(value_of<To>(item));
  CHECK(read_one(nonfinite) == (is_bad ? 1 : 0));
  for (unsigned s = 0; s + (test.in_place ? 1 : 0) < test.sources; ++s)
    CHECK(is_same(arrays[s].read(), values[s]));
}

template <typename From, typename To>
void check_sums() {
  for (unsigned k = 1; k <= 9; ++k)
    for (const std::uint32_t divisor : {1u, k, 8u})
      check_reduce<From, To>({.sources = k, .count = 5000, .divisor = divisor});
  check_reduce<From, To>({.sources = 32, .count = 300, .divisor = 32});
  for (const std::size_t count : {0, 1, 2, 3, 7, 8, 9, 255, 256, 257, 1023, 8191, 8192, 8193})
    check_reduce<From, To>({.sources = 2, .count = count, .op = ReduceOp::kAvg, .divisor = 2});
  for (const std::size_t shift : {1, 2, 3, 4, 5, 6, 7})
    check_reduce<From, To>({.sources = 3, .count = 1500, .divisor = 3, .shift = shift});
  check_reduce<From, To>({.sources = 4, .count = 3000, .divisor = 4, .scale = 0.3F});
}

TEST_CASE("sums and averages of k vectors have the bits of kernels::reduce, at every alignment") {
  check_sums<Float32, Float32>();
  check_sums<Float16, Float16>();
  check_sums<BFloat16, BFloat16>();
  check_sums<Float64, Float64>();
}

TEST_CASE("what is cast on the way is rounded once") {
  check_sums<Float32, Float16>();
  check_sums<Float32, BFloat16>();
  check_sums<Float16, Float32>();
  check_sums<BFloat16, Float32>();
}

template <typename Type>
void check_other_operators() {
  for (const ReduceOp op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax})
    for (const unsigned k : {1u, 2u, 5u, 9u})
      check_reduce<Type, Type>({.sources = k, .count = 700, .op = op, .shift = k % 2});
}

TEST_CASE("prod, min and max too, with their zeros and NaNs") {
  check_other_operators<Float32>();
  check_other_operators<Float16>();
  check_other_operators<BFloat16>();
  check_other_operators<Float64>();
}

TEST_CASE("the result may be written over a source") {
  check_reduce<Float32, Float32>({.sources = 3, .count = 9000, .divisor = 3, .in_place = true});
  check_reduce<BFloat16, BFloat16>({.sources = 9, .count = 77, .shift = 1, .in_place = true});
}

TEST_CASE("reduce refuses what it does not do") {
  const Array<float> memory(std::vector<float>(8));
  const auto refuses = [&memory](int from, int to, int op, unsigned sources, unsigned divisor) {
    gradring_reduce call = {};
    for (auto& source : call.fold.sources) source = memory.data();
    call.fold.source_count = sources;
    call.fold.divisor = divisor;
    call.fold.from = from;
    call.fold.count = 8;
    call.op = op;
    call.to = to;
    call.dst = memory.data();
    return Device::get().streaming().reduce(0, &call, nullptr) == GRADRING_GPU_BAD_CALL;
  };
  CHECK_FALSE(refuses(1, 1, 0, 2, 2));
  CHECK(refuses(1, 0, 0, 2, 1));  // float64 from float32.
  CHECK(refuses(6, 6, 0, 2, 1));  // int32.
  CHECK(refuses(1, 2, 3, 2, 1));  // min to another dtype.
  CHECK(refuses(1, 1, 5, 2, 1));  // band.
  CHECK(refuses(1, 1, -1, 2, 1));
  CHECK(refuses(-1, -1, 0, 2, 1));
  CHECK(refuses(1, 1, 0, 0, 1));
  CHECK(refuses(1, 1, 0, GRADRING_STREAM_SOURCES + 1, 1));
  CHECK(refuses(1, 1, 0, 2, 0));
  CHECK(refuses(1, 1, 0, 2, (1u << 24) + 1));
}

// check.cuh's order: what each of 256 threads has, the threads of a warp by halves, the warps.
double sum_of_threads(const std::vector<double>& threads) {
  double total = 0;
  for (std::size_t warp = 0; warp < 8; ++warp) {
    std::vector<double> lanes(threads.begin() + static_cast<std::ptrdiff_t>(32 * warp),
                              threads.begin() + static_cast<std::ptrdiff_t>(32 * warp + 32));
    for (std::size_t step = 16; step > 0; step /= 2)
      for (std::size_t lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
    total = warp == 0 ? lanes[0] : total + lanes[0];
  }
  return total;
}

template <typename Type>
double sum_of_squares(const std::vector<std::vector<typename Type::Item>>& tensors) {
  std::vector<double> pieces(256);
  std::size_t piece = 0;
  for (const auto& tensor : tensors)
    for (std::size_t begin = 0; begin < tensor.size(); begin += GRADRING_CHUNK_ITEMS) {
      std::vector<double> threads(256);
      for (std::size_t i = 0; i < GRADRING_CHUNK_ITEMS && begin + i < tensor.size(); ++i) {
        const double value = value_of<Type>(tensor[begin + i]);
        threads[i / (16 / sizeof(typename Type::Item)) % 256] += value * value;
      }
      pieces[piece++ % 256] += sum_of_threads(threads);
    }
  return sum_of_threads(pieces);
}

template <typename Type>
void check_check(std::optional<float> factor, bool is_tame) {
  std::vector<std::vector<typename Type::Item>> expected;
  std::vector<Array<typename Type::Item>> arrays;
  std::vector<gpu::Placed> placed;
  const std::vector<std::size_t> sizes = {1, 0, 3, 17, 255, 4096, 8192, 8195, 20000};
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    expected.push_back(random_items<Type>(sizes[t], 40 + t, is_tame));
    arrays.emplace_back(expected[t], t * sizeof(typename Type::Item) % 16);
    placed.push_back({arrays[t].data(), 0, sizes[t]});
  }
  const Array<gradring_chunk> table(gpu::cut_pieces(placed, sizeof(typename Type::Item)));
  const auto& streaming = Device::get().streaming();
  const auto chunks = static_cast<std::uint32_t>(table.size());
  const Array<double> scratch(std::vector<double>(streaming.check_scratch_bytes(chunks) / 8));
  const Array<float> scale(std::vector<float>{factor.value_or(1)});
  const Array<double> square_sum(std::vector<double>{0.25});
  const Array<std::uint32_t> nonfinite(std::vector<std::uint32_t>{0});
  const gradring_check call = {{table.data(), chunks},
                               static_cast<int>(kDTypeOf<Type>),
                               factor ? scale.data() : nullptr,
                               nonfinite.data(),
                               square_sum.data(),
                               scratch.data()};
  REQUIRE(streaming.check(0, &call, Device::get().stream()) == 0);

  bool is_bad = false;
  using Work = typename Type::Work;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    for (auto& item : expected[t]) {
      if (factor)
        item = item_of<Type>(static_cast<Work>(value_of<Type>(item)) * static_cast<Work>(*factor));
      is_bad = is_bad || !std::isfinite(value_of<Type>(item));
    }
    CHECK(is_same(arrays[t].read(), expected[t]));
  }
  CHECK(read_one(nonfinite) == (is_bad ? 1 : 0));
  CHECK(is_bad == !is_tame);
  if (is_tame) CHECK(read_one(square_sum) == 0.25 + sum_of_squares<Type>(expected));
}

template <typename Type>
void check_checks() {
  for (const bool is_tame : {true, false}) {
    check_check<Type>(std::nullopt, is_tame);
    check_check<Type>(0.3F, is_tame);
  }
}

TEST_CASE("a check unscales, finds what is not finite, and adds squares in its fixed order") {
  check_checks<Float32>();
  check_checks<Float16>();
  check_checks<BFloat16>();
  check_checks<Float64>();
}

TEST_CASE("a check is the same in every order of threads and blocks") {
  if (!Device::get().is_emulated()) return;
  for (const auto order : {emulator::Order::kReverse, emulator::Order::kRandom}) {
    emulator::set_order(order, 5);
    check_check<Float32>(0.3F, true);
    check_check<BFloat16>(std::nullopt, true);
    emulator::set_order(emulator::Order::kForward);
  }
}

TEST_CASE("the clip factor is torch's") {
  struct Case {
    double square_sum, max_norm;
    float factor;
  };
  for (const Case test : {Case{4, 1, static_cast<float>(1 / (2 + 1e-6))}, Case{0.25, 1, 1.0F},
                          Case{INFINITY, 1, 0.0F}}) {
    const Array<double> square_sum(std::vector<double>{test.square_sum});
    const Array<float> factor(std::vector<float>{-1});
    const gradring_clip call = {square_sum.data(), test.max_norm, factor.data()};
    REQUIRE(Device::get().streaming().clip(0, &call, Device::get().stream()) == 0);
    CHECK(read_one(factor) == test.factor);
  }
}

}  // namespace
}  // namespace gradring::gpu_reduce_test
