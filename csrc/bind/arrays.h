// From Python objects to memory: the buffer protocol, contiguous and typed. What has no buffer
// (torch, DLPack) is turned into one by gradring/arrays/buffers.py before it comes here.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/strided.h"
#include "base/types.h"

namespace gradring::bind {

// What the items of a buffer are; nothing where they cannot be sent, or only call themselves
// numbers (structures and unions may, of whatever size).
std::optional<DType> find_dtype(const Py_buffer& view);

// Holds a Python buffer open: the array cannot be resized or freed meanwhile. Made and destroyed
// with the GIL held.
class Buffer {
 public:
  Buffer() = default;
  // `dtype_code` -1: from the buffer's format; else the meaning of its items (bfloat16 has no
  // format character).
  Buffer(pybind11::handle object, int dtype_code, bool is_written);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  std::uint64_t count() const { return count_; }
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(view_.len); }
  DType dtype() const { return dtype_; }

 private:
  Py_buffer view_{};
  std::uint64_t count_ = 0;
  DType dtype_ = DType::kUInt8;
};

// The same of an array that need not be contiguous, and of which `buffer` is as large a one that
// stands for it.
class StridedBuffer {
 public:
  StridedBuffer(pybind11::handle object, const Buffer& buffer, bool is_written);
  StridedBuffer(const StridedBuffer&) = delete;
  StridedBuffer& operator=(const StridedBuffer&) = delete;
  ~StridedBuffer();

  const Packed& packed() const { return *packed_; }

 private:
  Py_buffer view_{};
  std::optional<Packed> packed_;
};
// None where the object is None: `buffer` is the array itself.
std::unique_ptr<StridedBuffer> strided(pybind11::handle object, const Buffer& buffer,
                                       bool is_written);

}  // namespace gradring::bind
