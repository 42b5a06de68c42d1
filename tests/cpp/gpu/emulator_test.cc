// The block emulator finds what it is there to find: a kernel that lacks a barrier is wrong in some
// order, threads that wait for each other for ever are named, and what is right is right in every
// order.
#include "emulator/cuda_emulation.h"
// After CUDA's names.
#include <doctest/doctest.h>

#include <cstddef>
#include <numeric>
#include <vector>

namespace gradring::emulator::emulator_test {
namespace {

struct InOrder {
  Order order;
  std::uint64_t seed;
};
constexpr InOrder kOrders[] = {
    {Order::kForward, 0}, {Order::kReverse, 0}, {Order::kRandom, 1}, {Order::kRandom, 2}};

class OrderScope {
 public:
  explicit OrderScope(InOrder in) { set_order(in.order, in.seed); }
  ~OrderScope() { set_order(Order::kForward); }
};

// Each thread writes its own value and reads its neighbour's.
template <bool kHasBarrier>
__global__ void rotate(const int* from, int* to) {
  __shared__ int values[64];
  const unsigned i = threadIdx.x;
  values[i] = from[blockIdx.x * 64 + i];
  if constexpr (kHasBarrier) __syncthreads();
  to[blockIdx.x * 64 + i] = values[(i + 1) % 64];
  __syncthreads();
}

template <bool kHasBarrier>
std::size_t wrong_after_rotate() {
  constexpr int kCount = 3 * 64;
  std::vector<int> from(kCount);
  std::iota(from.begin(), from.end(), 1);
  std::vector<int> to(kCount);
  REQUIRE(cuda::launch(rotate<kHasBarrier>, 3, 64, 0, nullptr, from.data(), to.data()) == 0);
  std::size_t wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += to[i] != from[i / 64 * 64 + (i + 1) % 64];
  return wrong;
}

TEST_CASE("a missing barrier gives wrong results in every order, a present one in none") {
  for (const InOrder in : kOrders) {
    const OrderScope scope(in);
    CHECK(wrong_after_rotate<true>() == 0);
    CHECK(wrong_after_rotate<false>() > 0);
  }
}

// The same within a warp.
template <bool kHasBarrier>
__global__ void rotate_in_warp(int* values, int* to) {
  const unsigned i = threadIdx.x;
  values[i] = static_cast<int>(i);
  if constexpr (kHasBarrier) __syncwarp();
  to[i] = values[i ^ 1];
}

TEST_CASE("a missing __syncwarp gives wrong results, a present one does not") {
  for (const InOrder in : kOrders) {
    const OrderScope scope(in);
    for (const bool has_barrier : {true, false}) {
      std::vector<int> values(40, -1);
      std::vector<int> to(40, -1);
      const auto kernel = has_barrier ? rotate_in_warp<true> : rotate_in_warp<false>;
      REQUIRE(cuda::launch(kernel, 1, 40, 0, nullptr, values.data(), to.data()) == 0);
      bool is_right = true;
      for (int i = 0; i < 40; ++i) is_right = is_right && to[i] == (i ^ 1);
      CHECK(is_right == has_barrier);
    }
  }
}

// Sums of 100 values by shuffles; the last warp has four lanes.
__global__ void sum(const double* values, double* total, unsigned* ballots) {
  GRADRING_DYNAMIC_SHARED(double, partial);
  const unsigned i = threadIdx.x;
  const unsigned lane = i % 32;
  double value = values[i];
  for (unsigned step = 16; step > 0; step /= 2) {
    const double other = __shfl_down_sync(0xFFFFFFFFu, value, step);
    if (lane + step < 32 && i + step < blockDim.x) value += other;
  }
  ballots[i] = __ballot_sync(0xFFFFFFFFu, values[i] > 50);
  if (lane == 0) partial[i / 32] = value;
  __syncthreads();
  if (i != 0) return;
  for (unsigned warp = 1; warp < (blockDim.x + 31) / 32; ++warp) partial[0] += partial[warp];
  atomicAdd(total, partial[0]);
}

TEST_CASE("shuffles, ballots, dynamic shared memory and atomics do what CUDA's do") {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1);
  for (const InOrder in : kOrders) {
    const OrderScope scope(in);
    double total = 0.5;
    std::vector<unsigned> ballots(100);
    REQUIRE(cuda::launch(sum, dim3(2), dim3(100), 4 * sizeof(double), nullptr, values.data(),
                         &total, ballots.data()) == 0);
    CHECK(total == 0.5 + 2 * 5050);
    CHECK(ballots[0] == 0);
    CHECK(ballots[63] == 0xFFFC0000u);
    CHECK(ballots[99] == 0xFu);
  }
}

__global__ void wait_in_two_places(bool* is_first) {
  if (threadIdx.x == 0) {
    __syncthreads();
  } else {
    *is_first = false;
    __syncthreads();
  }
}
__global__ void leave_a_lane_out() {
  if (threadIdx.x % 2 == 0) __syncwarp(0xFFFFFFFFu);
  __syncthreads();
}
__global__ void read_misaligned(const char* from) {
  __ldg(reinterpret_cast<const uint4*>(from + 4));
}

TEST_CASE("what a GPU would hang on or trap is a fault that says where") {
  bool is_first = true;
  CHECK_THROWS_WITH_AS(cuda::launch(wait_in_two_places, 1, 32, 0, nullptr, &is_first),
                       doctest::Contains("two barriers"), Fault);
  CHECK_THROWS_WITH_AS(cuda::launch(leave_a_lane_out, 1, 32, 0, nullptr),
                       doctest::Contains("for ever: thread 0 at "), Fault);
  alignas(16) const char bytes[32] = {};
  CHECK_THROWS_WITH_AS(cuda::launch(read_misaligned, 1, 1, 0, nullptr, bytes),
                       doctest::Contains("misaligned"), Fault);
  CHECK(cuda::launch(leave_a_lane_out, 1, 1025, 0, nullptr) != 0);
  CHECK(wrong_after_rotate<true>() == 0);  // A fault leaves nothing behind.
}

std::vector<Work>* queue = nullptr;

TEST_CASE("a stream's hook gets launches, which keep the arguments they were made with") {
  std::vector<Work> works;
  queue = &works;
  set_stream_hook([](void*, Work work) {
    queue->push_back(std::move(work));
    return 0;
  });
  std::vector<int> from(64, 7);
  std::vector<int> to(64);
  const int* pointer = from.data();
  const int error = cuda::launch(rotate<true>, 1, 64, 0, nullptr, pointer, to.data());
  pointer = nullptr;
  set_stream_hook(nullptr);
  CHECK(error == 0);
  CHECK(to[0] == 0);
  REQUIRE(works.size() == 1);
  works[0]();
  CHECK(to == from);
}

}  // namespace
}  // namespace gradring::emulator::emulator_test
