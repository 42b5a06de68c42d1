// A sparse table in this process's own memory, without servers: what `gradring bench` measures
// pulls and pushes beside. One thread.
#include <pybind11/pybind11.h>

#include <memory>

#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "bind/rules.h"
#include "ps/tables/sparse_table.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;

class TableProbe {
 public:
  TableProbe(std::uint32_t dim, const py::dict& rule) {
    ps::TableSpec spec;
    spec.name = "probe";
    spec.dim = dim;
    spec.rule = rule_from(rule);
    ps::require_valid(spec);
    table_ = std::make_unique<ps::SparseTable>(spec);
  }

  void gather(const py::object& ids, const py::object& out) const {
    const Buffer from(ids, static_cast<int>(DType::kInt64), false);  // Or uint64: the same bits.
    const Buffer to(out, static_cast<int>(DType::kFloat32), true);
    const auto all = checked(from, to);
    const WithoutGil release;
    table_->gather(all, reinterpret_cast<float*>(to.data()));
  }

  // The gradients are scratch.
  void apply(const py::object& ids, const py::object& gradients) {
    const Buffer from(ids, static_cast<int>(DType::kInt64), false);  // Or uint64: the same bits.
    const Buffer scratch(gradients, static_cast<int>(DType::kFloat32), true);
    const auto all = checked(from, scratch);
    const WithoutGil release;
    table_->apply(all, reinterpret_cast<float*>(scratch.data()), 0, ++steps_);
  }

 private:
  std::span<const std::uint64_t> checked(const Buffer& ids, const Buffer& rows) const {
    if (rows.dtype() != DType::kFloat32 || rows.count() != ids.count() * table_->spec().dim)
      throw InvalidArgument("rows are float32, one for each id");
    return {reinterpret_cast<const std::uint64_t*>(ids.data()), ids.count()};
  }

  std::unique_ptr<ps::SparseTable> table_;
  std::uint64_t steps_ = 0;
};

}  // namespace

void register_ps_probe(py::module_& module) {
  py::class_<TableProbe>(module, "TableProbe")
      .def(py::init<std::uint32_t, const py::dict&>(), py::arg("dim"), py::arg("rule"))
      .def("gather", &TableProbe::gather, py::arg("ids"), py::arg("out"))
      .def("apply", &TableProbe::apply, py::arg("ids"), py::arg("gradients"));
}

}  // namespace gradring::bind
