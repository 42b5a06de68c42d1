// CUDA's language and the little of its runtime that the plugin's kernels and launchers use, as
// C++: included before a .cu file that g++ compiles (-x c++ -include). What threads do is run by
// block.h. What is missing here is not to be used in kernels without adding it: cooperative groups,
// cp.async, CUB, __activemask.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "emulator/block.h"

#define GRADRING_EMULATED 1

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// One block at a time on a thread. What the block before left there is what the next one finds.
#define __shared__ static thread_local
#define GRADRING_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::gradring::emulator::place.shared)

#define threadIdx (::gradring::emulator::place.thread)
#define blockIdx (::gradring::emulator::place.block)
#define blockDim (::gradring::emulator::place.block_size)
#define gridDim (::gradring::emulator::place.grid_size)
inline constexpr int warpSize = 32;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_in = 1, unsigned y_in = 1, unsigned z_in = 1)
      : x(x_in), y(y_in), z(z_in) {}
};

#define GRADRING_VECTORS(type, name)                                      \
  struct alignas(2 * sizeof(type)) name##2 {                              \
    type x, y;                                                            \
  };                                                                      \
  struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4 { \
    type x, y, z, w;                                                      \
  };                                                                      \
  inline name##2 make_##name##2(type x, type y) {                         \
    return {x, y};                                                        \
  }                                                                       \
  inline name##4 make_##name##4(type x, type y, type z, type w) {         \
    return {x, y, z, w};                                                  \
  }
GRADRING_VECTORS(std::uint8_t, uchar)
GRADRING_VECTORS(std::int8_t, char)
GRADRING_VECTORS(std::uint16_t, ushort)
GRADRING_VECTORS(std::int16_t, short)
GRADRING_VECTORS(unsigned, uint)
GRADRING_VECTORS(int, int)
GRADRING_VECTORS(float, float)
GRADRING_VECTORS(double, double)
GRADRING_VECTORS(long long, longlong)
GRADRING_VECTORS(unsigned long long, ulonglong)
#undef GRADRING_VECTORS

using gradring::emulator::Site;

inline void __syncthreads(Site site = Site::current()) {
  gradring::emulator::block_barrier(false, site);
}
inline int __syncthreads_count(int predicate, Site site = Site::current()) {
  return gradring::emulator::block_barrier(predicate != 0, site);
}
inline int __syncthreads_or(int predicate, Site site = Site::current()) {
  return gradring::emulator::block_barrier(predicate != 0, site) != 0;
}
inline int __syncthreads_and(int predicate, Site site = Site::current()) {
  return gradring::emulator::block_barrier(predicate == 0, site) == 0;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap() {
  throw gradring::emulator::Fault("__trap()");
}

// Warps.

namespace gradring::emulator {

template <typename T>
std::uint64_t carried(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

// What `lane` brought; where it brought nothing, CUDA leaves open what comes.
template <typename T>
T brought_by(const Exchanged& exchanged, unsigned lane) {
  const bool is_there = (exchanged.present >> lane & 1) != 0;
  const std::uint64_t bits = is_there ? exchanged.values[lane] : 0xA5A5A5A5A5A5A5A5u;
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The bits of the lanes whose value fulfils a condition.
template <typename Condition>
std::uint32_t lanes_that(const Exchanged& exchanged, Condition condition) {
  std::uint32_t lanes = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane)
    if ((exchanged.present >> lane & 1) != 0 && condition(exchanged.values[lane]))
      lanes |= 1u << lane;
  return lanes;
}

template <typename T, typename Combine>
T reduced(std::uint32_t mask, T value, Site site, Combine combine) {
  const Exchanged exchanged = warp_exchange(mask, carried(value), site);
  bool is_first = true;
  T result{};
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if ((exchanged.present >> lane & 1) == 0) continue;
    const T other = brought_by<T>(exchanged, lane);
    result = is_first ? other : combine(result, other);
    is_first = false;
  }
  return result;
}

}  // namespace gradring::emulator

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, Site site = Site::current()) {
  gradring::emulator::warp_exchange(mask, 0, site);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, Site site = Site::current()) {
  using namespace gradring::emulator;
  const Exchanged exchanged = warp_exchange(mask, carried(value), site);
  const unsigned within = static_cast<unsigned>(width - 1);
  const unsigned from = (lane_number() & ~within) | (static_cast<unsigned>(source) & within);
  return brought_by<T>(exchanged, from);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 Site site = Site::current()) {
  using namespace gradring::emulator;
  const Exchanged exchanged = warp_exchange(mask, carried(value), site);
  const unsigned within = static_cast<unsigned>(width - 1);
  const bool is_inside = delta <= (lane_number() & within);
  return brought_by<T>(exchanged, is_inside ? lane_number() - delta : lane_number());
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   Site site = Site::current()) {
  using namespace gradring::emulator;
  const Exchanged exchanged = warp_exchange(mask, carried(value), site);
  const unsigned within = static_cast<unsigned>(width - 1);
  const bool is_inside = (lane_number() & within) + delta <= within;
  return brought_by<T>(exchanged, is_inside ? lane_number() + delta : lane_number());
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32, Site site = Site::current()) {
  using namespace gradring::emulator;
  const Exchanged exchanged = warp_exchange(mask, carried(value), site);
  const unsigned within = static_cast<unsigned>(width - 1);
  const unsigned from = lane_number() ^ static_cast<unsigned>(other);
  const bool is_inside = from <= (lane_number() | within);
  return brought_by<T>(exchanged, is_inside ? from : lane_number());
}

inline unsigned __ballot_sync(unsigned mask, int predicate, Site site = Site::current()) {
  using namespace gradring::emulator;
  return lanes_that(warp_exchange(mask, predicate != 0, site),
                    [](std::uint64_t value) { return value != 0; });
}
inline int __any_sync(unsigned mask, int predicate, Site site = Site::current()) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, Site site = Site::current()) {
  return __ballot_sync(mask, predicate == 0, site) == 0;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, Site site = Site::current()) {
  using namespace gradring::emulator;
  const std::uint64_t own = carried(value);
  return lanes_that(warp_exchange(mask, own, site),
                    [own](std::uint64_t other) { return other == own; });
}
template <typename T>
T __reduce_add_sync(unsigned mask, T value, Site site = Site::current()) {
  return gradring::emulator::reduced(mask, value, site, [](T a, T b) { return a + b; });
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value, Site site = Site::current()) {
  return gradring::emulator::reduced(mask, value, site, [](T a, T b) { return b < a ? b : a; });
}
template <typename T>
T __reduce_max_sync(unsigned mask, T value, Site site = Site::current()) {
  return gradring::emulator::reduced(mask, value, site, [](T a, T b) { return a < b ? b : a; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, Site site = Site::current()) {
  return gradring::emulator::reduced(mask, value, site,
                                     [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value, Site site = Site::current()) {
  return gradring::emulator::reduced(mask, value, site,
                                     [](unsigned a, unsigned b) { return a & b; });
}

// Memory. Launches of several streams run at once, so atomics are.

namespace gradring::emulator {

template <typename T>
void require_aligned(const T* pointer) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % sizeof(T) != 0)
    throw Fault("misaligned address: " + std::to_string(sizeof(T)) + " bytes at once");
}

template <typename T, typename Change>
T atomically(T* address, Change change) {
  require_aligned(address);
  std::atomic_ref<T> word(*address);
  T before = word.load();
  while (!word.compare_exchange_weak(before, change(before))) {
  }
  return before;
}

}  // namespace gradring::emulator

#define GRADRING_ATOMIC(name, result)                                                 \
  template <typename T>                                                               \
  T name(T* address, std::type_identity_t<T> value) {                                 \
    return gradring::emulator::atomically(                                            \
        address, [value]([[maybe_unused]] T old) { return static_cast<T>(result); }); \
  }
GRADRING_ATOMIC(atomicAdd, old + value)
GRADRING_ATOMIC(atomicSub, old - value)
GRADRING_ATOMIC(atomicMin, value < old ? value : old)
GRADRING_ATOMIC(atomicMax, old < value ? value : old)
GRADRING_ATOMIC(atomicOr, old | value)
GRADRING_ATOMIC(atomicAnd, old& value)
GRADRING_ATOMIC(atomicXor, old ^ value)
GRADRING_ATOMIC(atomicExch, value)
#undef GRADRING_ATOMIC
template <typename T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  gradring::emulator::require_aligned(address);
  T found = expected;
  std::atomic_ref<T>(*address).compare_exchange_strong(found, value);
  return found;
}

#define GRADRING_LOAD(name)                       \
  template <typename T>                           \
  T name(const T* address) {                      \
    gradring::emulator::require_aligned(address); \
    return *address;                              \
  }
GRADRING_LOAD(__ldg)
GRADRING_LOAD(__ldcs)
GRADRING_LOAD(__ldcg)
GRADRING_LOAD(__ldcv)
#undef GRADRING_LOAD
#define GRADRING_STORE(name)                             \
  template <typename T>                                  \
  void name(T* address, std::type_identity_t<T> value) { \
    gradring::emulator::require_aligned(address);        \
    *address = value;                                    \
  }
GRADRING_STORE(__stwb)
GRADRING_STORE(__stcs)
GRADRING_STORE(__stcg)
GRADRING_STORE(__stwt)
#undef GRADRING_STORE

// Numbers.

inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline int __float_as_int(float value) {
  return std::bit_cast<int>(value);
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline float __int_as_float(int bits) {
  return std::bit_cast<float>(bits);
}
inline long long __double_as_longlong(double value) {
  return std::bit_cast<long long>(value);
}
inline double __longlong_as_double(long long bits) {
  return std::bit_cast<double>(bits);
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fsqrt_rn(float a) {
  return std::sqrt(a);
}
inline int __float2int_rn(float a) {
  return static_cast<int>(std::nearbyint(a));
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline int __popcll(unsigned long long bits) {
  return std::popcount(bits);
}
inline int __clz(unsigned bits) {
  return std::countl_zero(bits);
}
inline int __clzll(unsigned long long bits) {
  return std::countl_zero(bits);
}
inline int __ffs(unsigned bits) {
  return bits == 0 ? 0 : std::countr_zero(bits) + 1;
}
inline int __ffsll(unsigned long long bits) {
  return bits == 0 ? 0 : std::countr_zero(bits) + 1;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((std::uint64_t{high} << 32) | low) >> (shift & 31));
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using Both = std::common_type_t<A, B>;
  return static_cast<Both>(b) < static_cast<Both>(a) ? static_cast<Both>(b) : static_cast<Both>(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using Both = std::common_type_t<A, B>;
  return static_cast<Both>(a) < static_cast<Both>(b) ? static_cast<Both>(b) : static_cast<Both>(a);
}

// The runtime, as far as launchers call it. Streams belong to whoever has set the hook.

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
struct cudaFuncAttributes {
  int numRegs = 0;
};

namespace gradring::emulator {
inline thread_local int device = 0;  // The calling thread's.
}

// Few, so that grids are smaller than the work.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 3;
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) {
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return static_cast<cudaError_t>(
      gradring::emulator::enqueue(stream, [=] { std::memset(to, value, bytes); }));
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  return static_cast<cudaError_t>(
      gradring::emulator::enqueue(stream, [=] { std::memmove(to, from, bytes); }));
}

namespace gradring::cuda {

// As csrc/cuda/runtime.h; threads have no contexts here.
class OnDevice {
 public:
  explicit OnDevice(int device) : former_(std::exchange(emulator::device, device)) {}
  ~OnDevice() { emulator::device = former_; }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  int error() const { return cudaSuccess; }

 private:
  const int former_;
};

// As csrc/cuda/launch.h. Arguments are copied when the launch is enqueued, as CUDA does.
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
           cudaStream_t stream, Args... args) {
  const emulator::Shape shape{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes};
  if (!emulator::is_valid(shape)) return cudaErrorInvalidConfiguration;
  return emulator::enqueue(
      stream, [=] { emulator::run_grid(shape, [&] { kernel(static_cast<Params>(args)...); }); });
}

}  // namespace gradring::cuda
