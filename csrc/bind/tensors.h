// torch's tensors on the CPU, seen by their attributes: they have no buffer protocol, and making an
// array of each in Python costs more than an operation on a short one. Nothing here imports torch:
// gradring/arrays/buffers.py says what its tensors are once it has met one.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/types.h"

namespace gradring::bind {

struct TensorMemory {
  std::byte* data = nullptr;
  std::uint64_t count = 0;
  DType dtype = DType::kUInt8;
};

// The memory of a contiguous tensor, valid as long as the tensor is neither freed nor resized.
// Nothing for whatever is not plainly that, subclasses and empty tensors included; no Python error
// is left. With the GIL.
std::optional<TensorMemory> find_tensor(PyObject* object);

}  // namespace gradring::bind
