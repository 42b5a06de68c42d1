#include "support/gpu_memory.h"

#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "support/kernels_reference.h"

namespace gradring::cuda {
extern const gradring_stream_kernels kStreamKernels;
}

namespace gradring::gpu_test {
namespace {

constexpr std::byte kAround{0xEE};
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kBehind = 0;
#else
constexpr std::size_t kBehind = 16;
#endif

void require(int error, const char* what) {
  if (error != 0) throw std::runtime_error(std::string(what) + ": " + std::to_string(error));
}

}  // namespace

const Device& Device::get() {
  static const Device device;
  return device;
}

Device::Device() : streaming_(&cuda::kStreamKernels) {
  const char* path = std::getenv("GRADRING_TEST_GPU_PLUGIN");
  if (path == nullptr) return;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto get_api =
      reinterpret_cast<gradring_gpu_get_api_fn>(dlsym(library, "gradring_gpu_get_api"));
  if (get_api == nullptr) throw std::runtime_error(dlerror());
  api_ = get_api();
  streaming_ = api_->streaming;
  require(api_->runtime->stream_create(0, 0, &stream_), "stream_create");
  require(streaming_->preload(0), "preload");
}

void* Device::allocate(std::size_t bytes) const {
  void* pointer = nullptr;
  if (api_ == nullptr)
    pointer = std::malloc(bytes);  // On 16 bytes.
  else
    require(api_->runtime->alloc(0, bytes, &pointer), "alloc");
  return pointer;
}

void Device::free(void* pointer) const {
  if (api_ == nullptr) {
    std::free(pointer);
    return;
  }
  api_->runtime->stream_synchronize(0, stream_);  // What was launched may still read it.
  api_->runtime->free(0, pointer);
}

// Through pinned memory: a copy to or from memory that the driver does not know is no call of ours.
void Device::write(void* to, const void* from, std::size_t bytes) const {
  if (api_ == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  void* pinned = nullptr;
  require(api_->runtime->pinned_alloc(bytes, &pinned), "pinned_alloc");
  std::memcpy(pinned, from, bytes);
  copy(to, pinned, bytes);
  require(api_->runtime->pinned_free(pinned), "pinned_free");
}

void Device::read(void* to, const void* from, std::size_t bytes) const {
  if (api_ == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  void* pinned = nullptr;
  require(api_->runtime->pinned_alloc(bytes, &pinned), "pinned_alloc");
  copy(pinned, from, bytes);
  std::memcpy(to, pinned, bytes);
  require(api_->runtime->pinned_free(pinned), "pinned_free");
}

void Device::copy(void* to, const void* from, std::size_t bytes) const {
  require(api_->runtime->copy(0, to, from, bytes, stream_), "copy");
  require(api_->runtime->stream_synchronize(0, stream_), "stream_synchronize");
}

Bytes::Bytes(const void* content, std::size_t bytes, std::size_t shift)
    : memory_(static_cast<std::byte*>(Device::get().allocate(shift + bytes + kBehind))),
      bytes_(bytes),
      shift_(shift) {
  std::vector<std::byte> all(shift + bytes + kBehind, kAround);
  if (bytes > 0) std::memcpy(all.data() + shift, content, bytes);
  if (!all.empty()) Device::get().write(memory_, all.data(), all.size());
}

Bytes::Bytes(Bytes&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_), shift_(other.shift_) {}

Bytes::~Bytes() {
  if (memory_ != nullptr) Device::get().free(memory_);
}

std::vector<std::byte> Bytes::read() const {
  std::vector<std::byte> all(shift_ + bytes_ + kBehind);
  if (!all.empty()) Device::get().read(all.data(), memory_, all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool is_around = i < shift_ || i >= shift_ + bytes_;
    if (is_around && all[i] != kAround)
      throw std::runtime_error("written " + std::to_string(i) + " bytes from the beginning, of " +
                               std::to_string(shift_) + " + " + std::to_string(bytes_));
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(shift_),
          all.begin() + static_cast<std::ptrdiff_t>(shift_ + bytes_)};
}

template <typename Type>
std::vector<typename Type::Item> random_items(std::size_t count, std::uint64_t seed, bool is_tame) {
  using Item = typename Type::Item;
  using Bits = std::conditional_t<sizeof(Item) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(Item) == 4, std::uint32_t, Item>>;
  std::mt19937_64 random(seed);
  std::vector<Item> items(count);
  for (Item& item : items) {
    const auto bits = static_cast<Bits>(random());
    const auto sign = static_cast<typename Type::Work>((bits & 1) != 0 ? -1 : 1);
    const auto fraction =
        static_cast<typename Type::Work>(std::ldexp(static_cast<double>(bits >> 1 & 0x7FFF), -14));
    switch (random() % 16) {
      case 0: item = kernels::bits_as<Item>(static_cast<Bits>(bits & 0x3)); break;  // Denormal.
      case 1: item = item_of<Type>(sign * 0); break;
      case 2:
        item = is_tame ? item_of<Type>(sign)
                       : item_of<Type>(sign * std::numeric_limits<typename Type::Work>::infinity());
        break;
      case 3:
      case 4:
        if (!is_tame) {
          item = kernels::bits_as<Item>(bits);
          break;
        }
        [[fallthrough]];
      default: item = item_of<Type>(sign * fraction); break;
    }
  }
  return items;
}

template <>
double value_of<Float32>(float item) {
  return static_cast<double>(item);
}
template <>
double value_of<Float64>(double item) {
  return item;
}
template <>
double value_of<Float16>(std::uint16_t item) {
  return reference::value_of_half(DType::kFloat16, item);
}
template <>
double value_of<BFloat16>(std::uint16_t item) {
  return reference::value_of_half(DType::kBFloat16, item);
}

template <>
float item_of<Float32>(float value) {
  return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
}
template <>
double item_of<Float64>(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}
template <>
std::uint16_t item_of<Float16>(float value) {
  return reference::nearest_half(DType::kFloat16, static_cast<double>(value));
}
template <>
std::uint16_t item_of<BFloat16>(float value) {
  return reference::nearest_half(DType::kBFloat16, static_cast<double>(value));
}

template std::vector<float> random_items<Float32>(std::size_t, std::uint64_t, bool);
template std::vector<double> random_items<Float64>(std::size_t, std::uint64_t, bool);
template std::vector<std::uint16_t> random_items<Float16>(std::size_t, std::uint64_t, bool);
template std::vector<std::uint16_t> random_items<BFloat16>(std::size_t, std::uint64_t, bool);

}  // namespace gradring::gpu_test
