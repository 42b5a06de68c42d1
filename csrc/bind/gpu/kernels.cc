// _core.gpu_kernel: one kernel of the GPU plugin, by name, its call given as a dict with the fields
// of the structs in gpu/*_calls.h (nested ones by their own names; pointers as numbers; what is
// left out is 0). For gradring/gpu/kernels.py, which gives them signatures.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bind/gil.h"
#include "bind/module.h"
#include "gpu/plugin.h"
#include "gpu/stream.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using Address = std::uintptr_t;

// Reads a dict and notices what nobody asked for.
class Fields {
 public:
  explicit Fields(const py::dict& values) : values_(values) {}

  template <typename T>
  void read(const char* name, T& to) {
    if (!values_.contains(name)) return;
    ++used_;
    const py::object value = values_[name];
    if constexpr (std::is_pointer_v<T>)
      to = reinterpret_cast<T>(value.cast<Address>());  // NOLINT: Python has pointers as numbers.
    else
      to = value.cast<T>();
  }

  template <typename T>
  void read_list(const char* name, T* to, std::size_t most) {
    if (!values_.contains(name)) return;
    ++used_;
    const auto given = values_[name].cast<std::vector<Address>>();
    if (given.size() > most) throw InvalidArgument(str(name, ": ", most, " at the most"));
    for (std::size_t i = 0; i < given.size(); ++i)
      to[i] = reinterpret_cast<T>(given[i]);  // NOLINT: as above.
  }

  void require_all_read() const {
    if (used_ != values_.size()) throw InvalidArgument("a kernel's call has a field too many");
  }

 private:
  const py::dict& values_;
  std::size_t used_ = 0;
};

void read(Fields& fields, gradring_chunks& to) {
  fields.read("chunks", to.at);
  fields.read("chunk_count", to.count);
}

void read(Fields& fields, gradring_fold& to) {
  fields.read_list("sources", to.sources, GRADRING_STREAM_SOURCES);
  fields.read("source_count", to.source_count);
  fields.read("divisor", to.divisor);
  fields.read("from_dtype", to.from);
  fields.read("scale", to.scale);
  fields.read("count", to.count);
}

void read(Fields& fields, gradring_pack& to) {
  read(fields, to.chunks);
  fields.read("from_dtype", to.from);
  fields.read("to_dtype", to.to);
  fields.read("bucket", to.bucket);
  fields.read("scale", to.scale);
  fields.read("residual", to.residual);
  fields.read("nonfinite", to.nonfinite);
  fields.read("saturates", to.saturates);
}

void read(Fields& fields, gradring_unpack& to) {
  read(fields, to.chunks);
  fields.read("from_dtype", to.from);
  fields.read("to_dtype", to.to);
  fields.read("bucket", to.bucket);
  fields.read("scale", to.scale);
  fields.read("nonfinite", to.nonfinite);
  fields.read("skip", to.skip);
  fields.read("adds", to.adds);
}

void read(Fields& fields, gradring_reduce& to) {
  read(fields, to.fold);
  fields.read("op", to.op);
  fields.read("to_dtype", to.to);
  fields.read("dst", to.dst);
  fields.read("nonfinite", to.nonfinite);
}

void read(Fields& fields, gradring_check& to) {
  read(fields, to.chunks);
  fields.read("dtype", to.dtype);
  fields.read("scale", to.scale);
  fields.read("nonfinite", to.nonfinite);
  fields.read("square_sum", to.square_sum);
  fields.read("scratch", to.scratch);
}

void read(Fields& fields, gradring_step& to) {
  read(fields, to.fold);
  fields.read("weights", to.weights);
  fields.read_list("fields", to.fields, 2);
  fields.read("copy", to.copy);
  fields.read("copy_dtype", to.copy_dtype);
  fields.read("scalars", to.scalars);
  fields.read("skip", to.skip);
}

void read(Fields& fields, gradring_quantise& to) {
  fields.read("values", to.values);
  fields.read("residual", to.residual);
  fields.read("count", to.count);
  fields.read("out", to.out);
  fields.read("nonfinite", to.nonfinite);
}

void read(Fields& fields, gradring_codec_sources& to) {
  fields.read_list("sources", to.at, GRADRING_CODEC_SOURCES);
  fields.read("source_count", to.count);
  to.plain = -1;
  fields.read("plain", to.plain);
}

void read(Fields& fields, gradring_dequantise& to) {
  read(fields, to.sources);
  fields.read("count", to.count);
  fields.read("dst", to.dst);
  fields.read("start", to.start);
  fields.read("divisor", to.divisor);
  fields.read("divisor_at", to.divisor_at);
}

void read(Fields& fields, gradring_requantise& to) {
  read(fields, to.sources);
  fields.read("count", to.count);
  fields.read("residual", to.residual);
  fields.read("out", to.out);
  fields.read("start", to.start);
  fields.read("nonfinite", to.nonfinite);
}

void read(Fields& fields, gradring_sparsify& to) {
  fields.read("values", to.values);
  fields.read("residual", to.residual);
  fields.read("count", to.count);
  fields.read("kept", to.kept);
  fields.read("out", to.out);
  fields.read("scratch", to.scratch);
}

void read(Fields& fields, gradring_desparsify& to) {
  fields.read("source", to.from);
  fields.read("kept", to.kept);
  fields.read("count", to.count);
  fields.read("dst", to.dst);
  fields.read("adds", to.adds);
}

void read(Fields& fields, gradring_unique& to) {
  fields.read("ids", to.ids);
  fields.read("count", to.count);
  fields.read("unique_ids", to.unique_ids);
  fields.read("starts", to.starts);
  fields.read("positions", to.positions);
  fields.read("places", to.places);
  fields.read("unique_count", to.unique_count);
  fields.read("scratch", to.scratch);
}

void read(Fields& fields, gradring_segment_sum& to) {
  fields.read("rows", to.rows);
  fields.read("dtype", to.dtype);
  fields.read("dim", to.dim);
  fields.read("starts", to.starts);
  fields.read("positions", to.positions);
  fields.read("unique_count", to.unique_count);
  fields.read("most", to.most);
  fields.read("sums", to.sums);
}

void read(Fields& fields, gradring_row_slots& to) {
  fields.read("slots", to.slots);
  fields.read("slot_bytes", to.slot_bytes);
  fields.read("dim", to.dim);
  fields.read("rows_of_table", to.rows);
  fields.read("most", to.most);
  fields.read("count_at", to.count_at);
  fields.read("missing", to.missing);
}

void read(Fields& fields, gradring_gather_rows& to) {
  read(fields, to.where);
  fields.read("table", to.table);
  fields.read("table_dtype", to.table_dtype);
  fields.read("out_dtype", to.out_dtype);
  fields.read("stride", to.stride);
  fields.read("out", to.out);
}

void read(Fields& fields, gradring_put_rows& to) {
  read(fields, to.where);
  fields.read("table", to.table);
  fields.read("stride", to.stride);
  fields.read("rows", to.rows);
}

void read(Fields& fields, gradring_apply_rows& to) {
  read(fields, to.where);
  fields.read("kind", to.rule.kind);
  fields.read("weight_decay", to.rule.weight_decay);
  fields.read("lr_decay", to.rule.lr_decay);
  fields.read("mean_weight", to.rule.mean_weight);
  fields.read("square_decay", to.rule.square_decay);
  fields.read("square_weight", to.rule.square_weight);
  fields.read("eps", to.rule.eps);
  fields.read("lr", to.step.lr);
  fields.read("step", to.step.step);
  fields.read("corrections", to.corrections);
  fields.read("correction_count", to.correction_count);
  fields.read("gradients", to.gradients);
  fields.read("weights", to.weights);
  fields.read("stride", to.stride);
  fields.read_list("fields", to.fields, GRADRING_RULE_FIELDS);
  fields.read("field_stride", to.field_stride);
  fields.read("steps", to.steps);
  fields.read("refused", to.refused);
}

template <typename Call>
void launch(int (*kernel)(int, const Call*, gradring_stream), int device, Address stream,
            const py::dict& values, const char* name) {
  Call call{};
  Fields fields(values);
  read(fields, call);
  fields.require_all_read();
  const WithoutGil no_gil;
  gpu::check(kernel(device, &call, gpu::stream_of(stream)), name);
}

// The kernels by name; nothing where the plugin has no such table.
using Launch = void (*)(int device, Address stream, const py::dict& values, const char* name);

template <auto Table, auto Kernel>
void launch_of(int device, Address stream, const py::dict& values, const char* name) {
  const auto* table = gpu::devices().*Table;
  if (table == nullptr || table->*Kernel == nullptr)
    throw DeviceError(str("the GPU plugin has no kernel '", name, "'"));
  launch(table->*Kernel, device, stream, values, name);
}

const std::map<std::string, Launch>& launches() {
  using Api = gradring_gpu_api;
  using Streaming = gradring_stream_kernels;
  using Codecs = gradring_codec_kernels;
  using Rows = gradring_row_kernels;
  static const std::map<std::string, Launch> all = {
      {"pack", &launch_of<&Api::streaming, &Streaming::pack>},
      {"unpack", &launch_of<&Api::streaming, &Streaming::unpack>},
      {"reduce", &launch_of<&Api::streaming, &Streaming::reduce>},
      {"check", &launch_of<&Api::streaming, &Streaming::check>},
      {"sgd", &launch_of<&Api::streaming, &Streaming::sgd>},
      {"adam", &launch_of<&Api::streaming, &Streaming::adam>},
      {"quantise", &launch_of<&Api::codecs, &Codecs::quantise>},
      {"dequantise", &launch_of<&Api::codecs, &Codecs::dequantise>},
      {"requantise", &launch_of<&Api::codecs, &Codecs::requantise>},
      {"sparsify", &launch_of<&Api::codecs, &Codecs::sparsify>},
      {"desparsify", &launch_of<&Api::codecs, &Codecs::desparsify>},
      {"unique", &launch_of<&Api::rows, &Rows::unique>},
      {"segment_sum", &launch_of<&Api::rows, &Rows::segment_sum>},
      {"gather_rows", &launch_of<&Api::rows, &Rows::gather_rows>},
      {"put_rows", &launch_of<&Api::rows, &Rows::put_rows>},
      {"apply_rows", &launch_of<&Api::rows, &Rows::apply_rows>},
  };
  return all;
}

void run_kernel(const std::string& name, int device, Address stream, const py::dict& values) {
  const auto found = launches().find(name);
  if (found == launches().end()) throw InvalidArgument(str("there is no kernel '", name, "'"));
  found->second(device, stream, values, found->first.c_str());
}

template <typename Table>
const Table& require(const Table* table, const std::string& name) {
  if (table == nullptr) throw DeviceError(str("the GPU plugin has no kernel '", name, "'"));
  return *table;
}

// Bytes of scratch memory; for `check` by chunks, else by elements.
std::uint64_t scratch_bytes(const std::string& name, std::uint64_t count) {
  const gradring_gpu_api& api = gpu::devices();
  if (name == "check")
    return require(api.streaming, name).check_scratch_bytes(static_cast<std::uint32_t>(count));
  if (name == "sparsify") return require(api.codecs, name).sparsify_scratch_bytes(count);
  if (name == "unique") return require(api.rows, name).unique_scratch_bytes(count);
  throw InvalidArgument(str("kernel '", name, "' needs no scratch memory"));
}

}  // namespace

void register_gpu_kernels(py::module_& module) {
  module.def("gpu_kernel", &run_kernel, py::arg("name"), py::arg("device"), py::arg("stream"),
             py::arg("fields"));
  module.def("gpu_scratch_bytes", &scratch_bytes, py::arg("name"), py::arg("count"));
  module.def(
      "gpu_preload",
      [](int device) {
        gpu::check(require(gpu::devices().streaming, "preload").preload(device),
                   "bringing the kernels to the device");
      },
      py::arg("device"));
}

}  // namespace gradring::bind
