// What the tests of the GPU kernels run on: the emulated kernels, linked into the tests, or those
// of the plugin that $GRADRING_TEST_GPU_PLUGIN names, on its device 0. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/types.h"
#include "gpu/api.h"
#include "kernels/half.h"

namespace gradring::gpu_test {

using kernels::BFloat16;
using kernels::Float16;
using kernels::Float32;
using kernels::Float64;

class Device {
 public:
  static const Device& get();

  const gradring_stream_kernels& streaming() const { return *streaming_; }
  gradring_stream stream() const { return stream_; }
  bool is_emulated() const { return api_ == nullptr; }
  void* allocate(std::size_t bytes) const;
  void free(void* pointer) const;
  // To and from the device, after all that was launched.
  void write(void* to, const void* from, std::size_t bytes) const;
  void read(void* to, const void* from, std::size_t bytes) const;

 private:
  Device();
  void copy(void* to, const void* from, std::size_t bytes) const;
  const gradring_gpu_api* api_ = nullptr;
  const gradring_stream_kernels* streaming_ = nullptr;
  gradring_stream stream_ = nullptr;
};

// Bytes on the device, `shift` (under 16) behind a multiple of 16. Nothing lies behind them that
// AddressSanitizer would let pass; elsewhere it is looked at by read().
class Bytes {
 public:
  Bytes(const void* content, std::size_t bytes, std::size_t shift);
  ~Bytes();
  Bytes(Bytes&& other) noexcept;
  Bytes& operator=(Bytes&&) = delete;

  std::byte* data() const { return memory_ + shift_; }
  // Throws if something around them was written.
  std::vector<std::byte> read() const;

 private:
  std::byte* memory_;
  std::size_t bytes_;
  std::size_t shift_;
};

template <typename T>
class Array {
 public:
  explicit Array(std::span<const T> values, std::size_t shift = 0)
      : bytes_(values.data(), values.size_bytes(), shift), count_(values.size()) {}
  explicit Array(const std::vector<T>& values, std::size_t shift = 0)
      : Array(std::span<const T>(values), shift) {}

  T* data() const { return reinterpret_cast<T*>(bytes_.data()); }
  std::size_t size() const { return count_; }
  std::vector<T> read() const {
    const std::vector<std::byte> bytes = bytes_.read();
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

 private:
  Bytes bytes_;
  std::size_t count_;
};

template <typename T>
T read_one(const Array<T>& array) {
  return array.read().at(0);
}

// Numbers of all kinds: ordinary ones, huge and tiny ones, denormals, zeros, infinities and NaNs of
// either sign. `is_tame`: finite ones of ordinary size, and zeros and denormals.
template <typename Type>
std::vector<typename Type::Item> random_items(std::size_t count, std::uint64_t seed,
                                              bool is_tame = false);

template <typename Type>
double value_of(typename Type::Item item);
// Rounded once; the one quiet NaN.
template <typename Type>
typename Type::Item item_of(typename Type::Work value);

template <>
double value_of<Float32>(float item);
template <>
double value_of<Float64>(double item);
template <>
double value_of<Float16>(std::uint16_t item);
template <>
double value_of<BFloat16>(std::uint16_t item);
template <>
float item_of<Float32>(float value);
template <>
double item_of<Float64>(double value);
template <>
std::uint16_t item_of<Float16>(float value);
template <>
std::uint16_t item_of<BFloat16>(float value);

template <typename Type>
inline constexpr DType kDTypeOf = DType::kBool;
template <>
inline constexpr DType kDTypeOf<Float32> = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<Float64> = DType::kFloat64;
template <>
inline constexpr DType kDTypeOf<Float16> = DType::kFloat16;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBFloat16;

template <typename T>
bool is_same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace gradring::gpu_test
