// The update rules' arithmetic for NumPy arrays; gradring/optim documents it.
#include "bind/rules.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "kernels/row_updates.h"
#include "kernels/updater.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using kernels::kMaxStateFields;
using kernels::Rule;
using kernels::RuleKind;
using kernels::StateField;

constexpr struct {
  const char* name;
  double Rule::* member;
} kNumbers[] = {
    {"lr", &Rule::lr},
    {"momentum", &Rule::momentum},
    {"dampening", &Rule::dampening},
    {"weight_decay", &Rule::weight_decay},
    {"lr_decay", &Rule::lr_decay},
    {"initial_accumulator", &Rule::initial_accumulator},
    {"alpha", &Rule::alpha},
    {"beta1", &Rule::beta1},
    {"beta2", &Rule::beta2},
    {"eps", &Rule::eps},
    {"l1", &Rule::l1},
    {"l2", &Rule::l2},
    {"beta", &Rule::beta},
    {"clip_value", &Rule::clip_value},
    {"clip_norm", &Rule::clip_norm},
};

RuleKind kind_of(const std::string& text) {
  for (std::size_t i = 0; i < kernels::kRuleKindCount; ++i) {
    const auto kind = static_cast<RuleKind>(i);
    if (name(kind) == text) return kind;
  }
  throw InvalidArgument(str("there is no update rule '", text, "'"));
}

void set(Rule& rule, const std::string& key, const py::handle& value) {
  if (key == "kind") {
    rule.kind = kind_of(value.cast<std::string>());
  } else if (key == "nesterov") {
    rule.nesterov = value.cast<bool>();
  } else if (key == "centered") {
    rule.centered = value.cast<bool>();
  } else {
    for (const auto& number : kNumbers) {
      if (key != number.name) continue;
      rule.*number.member = value.cast<double>();
      return;
    }
    throw InvalidArgument(str("an update rule has no '", key, "'"));
  }
}

// What a step reads and writes, held open.
struct Arrays {
  Buffer weights;
  Buffer gradient;
  std::vector<Buffer> state;
};

template <typename Float>
void step_of(const Rule& rule, std::uint64_t step, std::uint64_t dim, const Arrays& arrays) {
  Float* fields[kMaxStateFields] = {};
  for (std::size_t i = 0; i < arrays.state.size(); ++i)
    fields[i] = reinterpret_cast<Float*>(arrays.state[i].data());
  const WithoutGil release;
  kernels::update_dense(rule, step, arrays.weights.count() / dim, dim,
                        reinterpret_cast<Float*>(arrays.weights.data()), fields,
                        reinterpret_cast<const Float*>(arrays.gradient.data()));
}

void require_same(const Buffer& buffer, DType dtype, std::uint64_t count, std::string_view what) {
  if (buffer.dtype() != dtype || buffer.count() != count)
    throw InvalidArgument(str(what, " is ", buffer.count(), " values of ", name(buffer.dtype()),
                              ", not ", count, " of ", name(dtype)));
}

// The arrays of a rule's state, each with a run of floats for each of `rows`.
std::vector<Buffer> state_of(const Rule& rule, const py::sequence& state, DType dtype,
                             std::uint64_t rows, std::uint64_t dim) {
  StateField fields[kMaxStateFields];
  const std::size_t field_count = state_fields(rule, dim, fields);
  if (state.size() != field_count)
    throw InvalidArgument(
        str(name(rule.kind), " has ", field_count, " arrays of state, not ", state.size()));
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < field_count; ++i) {
    buffers.emplace_back(state[i], -1, true);
    require_same(buffers[i], dtype, rows * fields[i].floats, fields[i].name);
  }
  return buffers;
}

void update_dense(const py::dict& rule_fields, std::uint64_t step, std::uint64_t dim,
                  const py::object& weights, const py::sequence& state,
                  const py::object& gradient) {
  const Rule rule = rule_from(rule_fields);
  if (step == 0) throw InvalidArgument("steps count from 1");
  Arrays arrays{Buffer(weights, -1, true), Buffer(gradient, -1, false), {}};
  const std::uint64_t count = arrays.weights.count();
  const DType dtype = arrays.weights.dtype();
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64)
    throw InvalidArgument(str("weights are float32 or float64, not ", name(dtype)));
  if (dim == 0 || count % dim != 0)
    throw InvalidArgument(str(count, " weights are no rows of ", dim));
  require_same(arrays.gradient, dtype, count, "the gradient");
  arrays.state = state_of(rule, state, dtype, count / dim, dim);
  if (dtype == DType::kFloat32) {
    kernels::require_float32(rule);
    step_of<float>(rule, step, dim, arrays);
  } else {
    step_of<double>(rule, step, dim, arrays);
  }
}

// Of float32 rows, steps of those that `slots` names.
void update_rows(const py::dict& rule_fields, const py::object& weights_in,
                 const py::sequence& state, const py::object& slots_in, const py::object& steps_in,
                 const py::object& gradients_in) {
  const Rule rule = rule_from(rule_fields);
  const Buffer weights(weights_in, static_cast<int>(DType::kFloat32), true);
  const Buffer slots(slots_in, static_cast<int>(DType::kInt64), false);
  const Buffer steps(steps_in, static_cast<int>(DType::kInt64), false);
  const Buffer gradients(gradients_in, static_cast<int>(DType::kFloat32), false);
  if (slots.count() == 0) return;
  const std::uint64_t dim = gradients.count() / slots.count();
  if (dim == 0 || gradients.count() % slots.count() != 0 || weights.count() % dim != 0)
    throw InvalidArgument(str(slots.count(), " rows with ", gradients.count(),
                              " values, of a matrix with ", weights.count()));
  kernels::require_float32(rule);
  const std::uint64_t rows = weights.count() / dim;
  const std::vector<Buffer> buffers = state_of(rule, state, DType::kFloat32, rows, dim);
  float* fields[kMaxStateFields] = {};
  for (std::size_t i = 0; i < buffers.size(); ++i)
    fields[i] = reinterpret_cast<float*>(buffers[i].data());
  const auto numbers = [](const Buffer& buffer) {
    return std::span(reinterpret_cast<const std::int64_t*>(buffer.data()), buffer.count());
  };
  const WithoutGil release;
  kernels::update_rows(rule, {reinterpret_cast<float*>(weights.data()), fields, rows, dim},
                       numbers(slots), numbers(steps),
                       reinterpret_cast<const float*>(gradients.data()));
}

// (name, floats, what they start as) of each field.
py::list fields_of(const py::dict& rule_fields, std::uint64_t dim) {
  StateField fields[kMaxStateFields];
  const std::size_t count = state_fields(rule_from(rule_fields), dim, fields);
  py::list result;
  for (std::size_t i = 0; i < count; ++i)
    result.append(py::make_tuple(fields[i].name, fields[i].floats, fields[i].initial));
  return result;
}

}  // namespace

kernels::Rule rule_from(const py::dict& fields) {
  Rule rule;
  for (const auto& [key, value] : fields) set(rule, key.cast<std::string>(), value);
  require_valid(rule);
  return rule;
}

void register_rules(py::module_& module) {
  module.def("update_dense", &update_dense, py::arg("rule"), py::arg("step"), py::arg("dim"),
             py::arg("weights"), py::arg("state"), py::arg("gradient"));
  module.def("update_rows", &update_rows, py::arg("rule"), py::arg("weights"), py::arg("state"),
             py::arg("slots"), py::arg("steps"), py::arg("gradients"));
  module.def("state_fields", &fields_of, py::arg("rule"), py::arg("dim"));
}

}  // namespace gradring::bind
