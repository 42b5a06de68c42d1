// What buckets and the optimizers need of the core: memory that the ranks of a host share, averages
// in the background, codecs.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "bind/gil.h"
#include "bind/module.h"
#include "bind/pending_work.h"
#include "collectives/engine/compressed.h"
#include "collectives/flat/shared_array.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;
using collectives::Operation;
using collectives::SharedArray;

// The average of all ranks' arrays with a divisor that an earlier operation, maybe still in flight,
// writes to `total`.
PendingWork average(const std::shared_ptr<Communicator>& self, const py::object& array, int dtype,
                    const py::object& total, std::int64_t timeout_ms) {
  Buffer buffer(array, dtype, true);
  Buffer divisor(total, static_cast<int>(DType::kFloat64), false);
  if (divisor.count() != 1) throw InvalidArgument("average: the total must be one float64");
  if (!is_defined(buffer.dtype(), ReduceOp::kAvg))
    throw InvalidArgument(str("average is not defined for ", name(buffer.dtype())));
  Operation operation;
  operation.request.op = OpKind::kAllReduce;
  operation.request.dtype = buffer.dtype();
  operation.request.reduce_op = ReduceOp::kAvg;
  operation.request.count = buffer.count();
  operation.input = operation.output = buffer.data();
  operation.divisor_at = reinterpret_cast<const double*>(divisor.data());
  auto work = self->submit(operation, timeout_of(*self, timeout_ms));
  return {self, std::move(work), nullptr, std::move(divisor), std::move(buffer)};
}

// Before something is packed that an operation in flight may still write.
void settle(Communicator& self, std::uint64_t count, int dtype, std::int64_t timeout_ms) {
  if (!self.has_submitted()) return;
  Operation next;
  next.request.op = OpKind::kAllReduce;
  next.request.dtype = static_cast<DType>(dtype);
  next.request.count = count;
  const WithoutGil release;
  self.settle(next, timeout_of(self, timeout_ms));
}

float* floats(const Buffer& buffer, std::uint64_t count, const char* what) {
  if (buffer.dtype() != DType::kFloat32 || buffer.count() != count)
    throw InvalidArgument(str(what, " must be float32, and as many as the values: ", count));
  return reinterpret_cast<float*>(buffer.data());
}

// In the background.
PendingWork all_reduce_compressed(const std::shared_ptr<Communicator>& self,
                                  const py::object& array, std::uint8_t kind, double ratio,
                                  const py::object& residual, const py::object& total,
                                  std::int64_t timeout_ms) {
  Buffer values(array, -1, true);
  Buffer rest = residual.is_none() ? Buffer() : Buffer(residual, -1, true);
  Buffer divisor;
  collectives::Compressed what;
  what.codec = codec_of(kind, ratio);
  what.count = values.count();
  what.values = floats(values, what.count, "the array");
  if (!residual.is_none()) what.residual = floats(rest, what.count, "the residual");
  if (!total.is_none()) {
    divisor = Buffer(total, static_cast<int>(DType::kFloat64), false);
    if (divisor.count() != 1) throw InvalidArgument("the total must be one float64");
    what.divisor_at = reinterpret_cast<const double*>(divisor.data());
  }
  auto work = self->submit(what, timeout_of(*self, timeout_ms));
  return {self, std::move(work), nullptr, std::move(rest), std::move(values), std::move(divisor)};
}

py::bytes encode(const py::object& array, std::uint8_t kind, double ratio,
                 const py::object& residual) {
  const kernels::Codec codec = codec_of(kind, ratio);
  const Buffer values(array, -1, false);
  const Buffer rest = residual.is_none() ? Buffer() : Buffer(residual, -1, true);
  const float* from = floats(values, values.count(), "the array");
  float* left = residual.is_none() ? nullptr : floats(rest, values.count(), "the residual");
  std::string out(kernels::encoded_bytes(codec, values.count()), '\0');
  kernels::encode(codec, from, left, values.count(), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

void decode(const py::object& encoded, std::uint8_t kind, double ratio, const py::object& array) {
  const kernels::Codec codec = codec_of(kind, ratio);
  const Buffer from(encoded, static_cast<int>(DType::kUInt8), false);
  const Buffer to(array, -1, true);
  if (from.count() != kernels::encoded_bytes(codec, to.count()))
    throw InvalidArgument(str(from.count(), " bytes are no ", name(codec.kind), " encoding of ",
                              to.count(), " values"));
  kernels::decode(codec, from.data(), to.count(), floats(to, to.count(), "the array"), false);
}

}  // namespace

kernels::Codec codec_of(std::uint8_t kind, double ratio) {
  if (kind >= kernels::kCodecKindCount) throw InvalidArgument("unknown codec");
  const kernels::Codec codec{static_cast<kernels::CodecKind>(kind), ratio};
  kernels::encoded_bytes(codec, 0);  // Checks the ratio.
  return codec;
}

void register_gradients(py::module_& module) {
  py::class_<SharedArray, std::shared_ptr<SharedArray>>(module, "SharedArray",
                                                        py::buffer_protocol())
      .def_buffer([](const SharedArray& self) {
        return py::buffer_info(self.data(), 1, py::format_descriptor<unsigned char>::format(), 1,
                               {self.bytes()}, {std::size_t{1}});
      });

  py::class_<Communicator, std::shared_ptr<Communicator>>(module.attr("Communicator"))
      .def(
          "share_memory",
          [](Communicator& self, std::uint64_t size_bytes, std::int64_t timeout_ms) {
            const WithoutGil release;
            return self.share_memory(size_bytes, timeout_of(self, timeout_ms));
          },
          py::arg("size_bytes"), py::arg("timeout_ms") = -1)
      .def("all_reduce_compressed", &all_reduce_compressed, py::arg("array"), py::arg("codec"),
           py::arg("ratio"), py::arg("residual"), py::arg("total"), py::arg("timeout_ms") = -1)
      .def("settle", &settle, py::arg("count"), py::arg("dtype"), py::arg("timeout_ms") = -1)
      .def("average", &average, py::arg("array"), py::arg("dtype"), py::arg("total"),
           py::arg("timeout_ms") = -1);

  module.def(
      "is_defined",
      [](int dtype, std::uint8_t reduce_op) {
        return is_defined(static_cast<DType>(dtype), static_cast<ReduceOp>(reduce_op));
      },
      py::arg("dtype"), py::arg("reduce_op"));
  module.def("encode", &encode, py::arg("array"), py::arg("codec"), py::arg("ratio"),
             py::arg("residual"));
  module.def("decode", &decode, py::arg("encoded"), py::arg("codec"), py::arg("ratio"),
             py::arg("array"));
  module.def(
      "compressed_bytes",
      [](std::uint8_t kind, double ratio, std::uint64_t count, Rank rank, Rank ranks) {
        return collectives::compressed_bytes(codec_of(kind, ratio), count, rank, ranks);
      },
      py::arg("codec"), py::arg("ratio"), py::arg("count"), py::arg("rank"), py::arg("ranks"));
}

}  // namespace gradring::bind
