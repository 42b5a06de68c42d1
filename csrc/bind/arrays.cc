#include "bind/arrays.h"

#include <cstring>
#include <vector>

#include "base/error.h"

namespace gradring::bind {
namespace {

// Struct-module characters, native or little-endian; long and long long are told apart by size.
std::optional<DType> named_dtype(const Py_buffer& view) {
  const char* format = view.format == nullptr ? "B" : view.format;
  if (*format == '<' || *format == '=' || *format == '@') ++format;
  if (format[0] == '\0' || format[1] != '\0') return std::nullopt;
  switch (format[0]) {
    case 'd': return DType::kFloat64;
    case 'f': return DType::kFloat32;
    case 'e': return DType::kFloat16;
    case 'b': return DType::kInt8;
    case 'h': return DType::kInt16;
    case 'i': return DType::kInt32;
    case 'l':
    case 'q': return view.itemsize == 8 ? DType::kInt64 : DType::kInt32;
    case 'B': return DType::kUInt8;
    case '?': return DType::kBool;
    default: return std::nullopt;
  }
}

DType dtype_of(const Py_buffer& view) {
  if (const auto dtype = find_dtype(view)) return *dtype;
  throw InvalidArgument(str("an array of format '", view.format == nullptr ? "" : view.format,
                            "' and ", view.itemsize,
                            " bytes per item cannot be sent; use float64, float32, float16, "
                            "bfloat16, int8, int16, int32, int64, uint8 or bool"));
}

}  // namespace

std::optional<DType> find_dtype(const Py_buffer& view) {
  const auto dtype = named_dtype(view);
  const bool fits = dtype && static_cast<std::size_t>(view.itemsize) == item_bytes(*dtype);
  return fits ? dtype : std::nullopt;
}

Buffer::Buffer(pybind11::handle object, int dtype_code, bool is_written) {
  const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (is_written ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw pybind11::error_already_set();
  try {
    if (dtype_code >= static_cast<int>(kDTypeCount)) throw InvalidArgument("unknown dtype code");
    dtype_ = dtype_code >= 0 ? static_cast<DType>(dtype_code) : dtype_of(view_);
    if (static_cast<std::size_t>(view_.itemsize) != item_bytes(dtype_))
      throw InvalidArgument(str("items of ", view_.itemsize, " bytes are no ", name(dtype_)));
    count_ = static_cast<std::uint64_t>(view_.len / view_.itemsize);
  } catch (...) {
    PyBuffer_Release(&view_);
    throw;
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : view_(other.view_), count_(other.count_), dtype_(other.dtype_) {
  other.view_.obj = nullptr;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
    view_ = other.view_;
    count_ = other.count_;
    dtype_ = other.dtype_;
    other.view_.obj = nullptr;
  }
  return *this;
}

Buffer::~Buffer() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

StridedBuffer::StridedBuffer(pybind11::handle object, const Buffer& buffer, bool is_written) {
  const int flags = PyBUF_FORMAT | PyBUF_STRIDES | (is_written ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw pybind11::error_already_set();
  std::uint64_t count = 1;
  std::vector<Axis> axes;
  for (int i = 0; i < view_.ndim; ++i) {
    axes.push_back({static_cast<std::size_t>(view_.shape[i]), view_.strides[i]});
    count *= axes.back().size;
  }
  const auto item = static_cast<std::size_t>(view_.itemsize);
  if (count != buffer.count() || item != item_bytes(buffer.dtype())) {
    PyBuffer_Release(&view_);
    throw InvalidArgument(str("a buffer of ", buffer.count(), " ", name(buffer.dtype()),
                              " does not stand for ", count, " items of ", item, " bytes"));
  }
  packed_.emplace(Packed{Strided(static_cast<std::byte*>(view_.buf), item, axes), buffer.data()});
}

StridedBuffer::~StridedBuffer() {
  PyBuffer_Release(&view_);
}

std::unique_ptr<StridedBuffer> strided(pybind11::handle object, const Buffer& buffer,
                                       bool is_written) {
  if (object.is_none()) return nullptr;
  return std::make_unique<StridedBuffer>(object, buffer, is_written);
}

}  // namespace gradring::bind
