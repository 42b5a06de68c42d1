// _core.Span: a stretch of user code in records and traces; gradring/trace.py documents it.
#include "base/spans.h"

#include <pybind11/pybind11.h>

#include "bind/module.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;

class Span {
 public:
  explicit Span(std::string name) : name_(std::move(name)) {}
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  ~Span() { end(); }

  void begin() {
    end();
    slot_ = Spans::of_process().begin(name_);
  }
  void end() {
    if (slot_ != nullptr) Spans::of_process().end(std::exchange(slot_, nullptr));
  }

 private:
  std::string name_;
  OperationRing::Slot* slot_ = nullptr;
};

}  // namespace

void register_spans(py::module_& module) {
  py::class_<Span>(module, "Span")
      .def(py::init<std::string>(), py::arg("name"))
      .def("begin", &Span::begin)
      .def("end", &Span::end);
}

}  // namespace gradring::bind
