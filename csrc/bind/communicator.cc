// _core.Communicator and _core.Work: convert, release the GIL, call. The documented classes are in
// gradring/collectives/communicator.py.
#include "collectives/communicator/communicator.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "bind/operations.h"
#include "bind/pending_work.h"
#include "collectives/records/record_text.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Communicator;
using collectives::Operation;

// Of one operation, as Python gives them.
struct Arrays {
  const py::object& input;
  const py::object& output;
  int dtype;
  const py::object& packed_from;
  const py::object& unpacked_to;
};

py::object run(const std::shared_ptr<Communicator>& self, Operation operation, const Arrays& arrays,
               std::int64_t timeout_ms, bool in_background) {
  const auto& [input, output, dtype, packed_from, unpacked_to] = arrays;
  Buffer in = input.is_none() ? Buffer() : Buffer(input, dtype, false);
  Buffer out = output.is_none() ? Buffer() : Buffer(output, dtype, true);
  if (!input.is_none() || !output.is_none())
    operation.request.dtype = input.is_none() ? out.dtype() : in.dtype();
  operation.input = in.data();
  operation.output = out.data();
  // The root of a broadcast only reads; in place, so that nothing is copied.
  if (operation.request.op == OpKind::kBroadcast && output.is_none()) operation.output = in.data();
  check_operation(*self, operation, {in.count(), in.dtype()}, {out.count(), out.dtype()});
  Apart apart{strided(packed_from, in, false), strided(unpacked_to, out, true)};
  const Millis timeout = timeout_of(*self, timeout_ms);
  if (in_background) {
    auto work = self->submit(operation, timeout, apart.packing());
    PendingWork pending{self, std::move(work), nullptr, std::move(in), std::move(out)};
    pending.apart = std::move(apart);
    return py::cast(std::move(pending));
  }
  {
    const WithoutGil
        release;  // Everything Python has been read; from here on it is memory and sockets.
    self->run(operation, timeout, apart.packing());
  }
  return py::none();
}

py::object transfer(const std::shared_ptr<Communicator>& self, bool is_recv,
                    const py::object& array, int dtype, Rank peer, std::int32_t tag,
                    std::int64_t timeout_ms, bool in_background, const py::object& memory) {
  const bool is_from_any = is_recv && peer == collectives::kAnyPeer;
  if (!is_from_any && (peer < 0 || peer >= self->world_size()))
    throw InvalidArgument(str(is_recv ? "recv" : "send", ": rank ", peer, " is not a rank of 0..",
                              self->world_size() - 1));
  Buffer buffer(array, dtype, is_recv);
  const auto message = message_of(is_recv, peer, tag, buffer);
  Apart apart{nullptr, strided(memory, buffer, is_recv)};
  if (apart.output && is_recv) message->unpacked_to = &apart.output->packed();
  if (apart.output && !is_recv) apart.output->packed().pack();
  self->start(message, in_background);
  if (in_background) {
    PendingWork pending{self, nullptr, message, std::move(buffer), Buffer()};
    pending.apart = std::move(apart);
    return py::cast(std::move(pending));
  }
  {
    const WithoutGil release;
    self->wait(message, timeout_of(*self, timeout_ms));
  }
  return py::none();
}

py::object cause(const Communicator& self) {
  const Failure failure = self.failure();
  if (!failure || failure.kind == ErrorKind::kClosed) return py::none();
  return to_python(failure);
}

py::tuple activity(const Communicator& self) {
  collectives::Activity activity;
  {
    const WithoutGil release;  // With a trace there are megabytes to look through.
    activity = self.activity();
  }
  return py::make_tuple(collectives::hex_id(self.id()), activity.collectives, activity.messages,
                        activity.under_way_nanos);
}

using Communicators = py::class_<Communicator, std::shared_ptr<Communicator>>;

// What makes further ones.
void register_groups(Communicators& communicators) {
  communicators
      .def(
          "split",
          [](Communicator& self, std::int64_t color, std::int64_t key, std::int64_t timeout_ms) {
            const WithoutGil release;
            return self.split(color, key, timeout_of(self, timeout_ms));
          },
          py::arg("color"), py::arg("key"), py::arg("timeout_ms") = -1)
      .def("subgroup", &Communicator::subgroup, py::arg("ranks"), py::arg("name"),
           py::call_guard<WithoutGil>())
      .def(
          "shrink",
          [](Communicator& self, std::int64_t timeout_ms) {
            const WithoutGil release;
            return self.shrink(timeout_of(self, timeout_ms));
          },
          py::arg("timeout_ms") = -1)
      .def(
          "grow",
          [](Communicator& self, std::int64_t timeout_ms) {
            const WithoutGil release;
            return self.grow(timeout_of(self, timeout_ms));
          },
          py::arg("timeout_ms") = -1)
      .def_property_readonly("meeting_point", &Communicator::meeting_point);
}

}  // namespace

void register_communicator(py::module_& module) {
  py::class_<PendingWork>(module, "Work")
      .def("wait", &PendingWork::wait, py::arg("timeout_ms") = -1)
      .def("done", &PendingWork::done)
      .def_property_readonly("source", &PendingWork::source);

  Communicators communicators(module, "Communicator");
  register_groups(communicators);
  communicators.def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("world_size", &Communicator::world_size)
      .def_property_readonly("local_rank", &Communicator::local_rank)
      .def_property_readonly("local_world_size", &Communicator::local_world_size)
      .def_property_readonly("streams", &Communicator::streams)
      .def_property_readonly("timeout_ms",
                             [](const Communicator& self) { return self.timeout().count(); })
      .def_property_readonly("is_closed", &Communicator::is_closed)
      .def_property_readonly("cause", &cause)
      .def("activity", &activity)
      .def("describe", &Communicator::describe, py::arg("rank"))
      .def(
          "run",
          [](const std::shared_ptr<Communicator>& self, std::uint8_t op, const py::object& input,
             const py::object& output, int dtype, std::uint8_t reduce_op, Rank root,
             std::uint64_t count, Counts counts, Counts recv_counts, std::uint8_t algorithm,
             bool is_rank_ordered, std::int64_t timeout_ms, bool in_background,
             const py::object& packed_from, const py::object& unpacked_to) {
            return run(self,
                       operation_of(op, reduce_op, root, count, std::move(counts),
                                    std::move(recv_counts), algorithm, is_rank_ordered),
                       {input, output, dtype, packed_from, unpacked_to}, timeout_ms, in_background);
          },
          py::arg("op"), py::arg("source"), py::arg("target"), py::kw_only(), py::arg("dtype") = -1,
          py::arg("reduce_op") = 0, py::arg("root") = 0, py::arg("count") = 0,
          py::arg("counts") = py::none(), py::arg("recv_counts") = py::none(),
          py::arg("algorithm") = 0, py::arg("is_rank_ordered") = false, py::arg("timeout_ms") = -1,
          py::arg("in_background") = false, py::arg("packed_from") = py::none(),
          py::arg("unpacked_to") = py::none())
      .def("transfer", &transfer, py::arg("is_recv"), py::arg("array"), py::arg("dtype"),
           py::arg("peer"), py::arg("tag"), py::arg("timeout_ms") = -1,
           py::arg("in_background") = false, py::arg("memory") = py::none())
      .def(
          "algorithm_for",
          [](const Communicator& self, std::uint8_t op, int dtype, std::uint64_t count) {
            Operation operation =
                operation_of(op, 0, 0, count, std::nullopt, std::nullopt, 0, false);
            operation.request.dtype = static_cast<DType>(dtype);
            return std::string(collectives::name(self.algorithm_for(operation)));
          },
          py::arg("op"), py::arg("dtype"), py::arg("count"))
      .def("close", &Communicator::close, py::arg("linger") = true, py::call_guard<WithoutGil>());
}

}  // namespace gradring::bind
