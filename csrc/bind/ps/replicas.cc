// The modes' arithmetic on rows in NumPy arrays, without the GIL: kernels/replica.h for GEO, and
// ps/tables/merge.h for gradients on their way to servers.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "bind/arrays.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "kernels/replica.h"
#include "ps/tables/merge.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;

// The arrays of a call, checked against each other.
struct Rows {
  Rows(const py::object& weights_in, const py::object& base_in, const py::object& slots_in,
       const py::object& rows_in, bool writes_rows)
      : weights(weights_in, static_cast<int>(DType::kFloat32), true),
        base(base_in, static_cast<int>(DType::kFloat32), true),
        slots(slots_in, static_cast<int>(DType::kInt64), false),
        rows(rows_in, static_cast<int>(DType::kFloat32), writes_rows) {
    const std::size_t count = slots.count();
    if (count == 0) return;
    if (rows.count() % count != 0 || base.count() != weights.count())
      throw InvalidArgument(str("replica: ", weights.count(), " weights, ", base.count(),
                                " of the base, and ", rows.count(), " values for ", count,
                                " slots do not fit"));
    replica.dim = rows.count() / count;
    replica.rows = replica.dim == 0 ? 0 : weights.count() / replica.dim;
    replica.weights = reinterpret_cast<float*>(weights.data());
    replica.base = reinterpret_cast<float*>(base.data());
    places = {reinterpret_cast<const std::int64_t*>(slots.data()), count};
  }

  Buffer weights, base, slots, rows;
  kernels::Replica replica{};
  std::span<const std::int64_t> places;
};

void offer_rows(const py::object& weights, const py::object& base, const py::object& slots,
                int workers, const py::object& delta) {
  const Rows all(weights, base, slots, delta, true);
  const WithoutGil release;
  kernels::require_slots(all.replica, all.places);
  kernels::offer_rows(all.replica, all.places, static_cast<float>(workers),
                      reinterpret_cast<float*>(all.rows.data()));
}

double accept_rows(const py::object& weights, const py::object& base, const py::object& slots,
                   const py::object& server) {
  const Rows all(weights, base, slots, server, false);
  const WithoutGil release;
  kernels::require_slots(all.replica, all.places);
  return kernels::accept_rows(all.replica, all.places,
                              reinterpret_cast<const float*>(all.rows.data()));
}

template <typename T>
std::span<T> span_of(const Buffer& buffer) {
  return {reinterpret_cast<T*>(buffer.data()), buffer.count()};
}

std::size_t find_progress(const py::object& weights_in, const py::object& base_in, std::size_t dim,
                          const py::object& slots_in, const py::object& found_in) {
  const Buffer weights(weights_in, static_cast<int>(DType::kFloat32), false);
  const Buffer base(base_in, static_cast<int>(DType::kFloat32), false);
  const Buffer slots(slots_in, static_cast<int>(DType::kInt64), false);
  const Buffer found(found_in, static_cast<int>(DType::kInt64), true);
  if (base.count() != weights.count() || found.count() < slots.count())
    throw InvalidArgument(str("replica: ", weights.count(), " weights, ", base.count(),
                              " of the base, and room for ", found.count(), " of ", slots.count(),
                              " slots do not fit"));
  const kernels::Replica replica{span_of<float>(weights).data(), span_of<float>(base).data(),
                                 dim == 0 ? 0 : weights.count() / dim, dim};
  const auto places = span_of<const std::int64_t>(slots);
  const WithoutGil release;
  kernels::require_slots(replica, places);
  return kernels::find_progress(replica, places, span_of<std::int64_t>(found).data());
}

void mark_rows(const py::object& slots_in, const py::object& touches_in) {
  const Buffer slots(slots_in, static_cast<int>(DType::kInt64), false);
  const Buffer touches(touches_in, static_cast<int>(DType::kInt32), true);
  kernels::mark_rows(span_of<const std::int64_t>(slots), span_of<std::int32_t>(touches));
}

void find_ids(const py::object& slots_in, const py::object& known_in, const py::object& ids_in,
              const py::object& found_in) {
  const Buffer slots(slots_in, static_cast<int>(DType::kInt64), false);
  // Of ids the bits alone count: what is said of their sign is not.
  const Buffer known(known_in, static_cast<int>(DType::kInt64), false);
  const Buffer ids(ids_in, static_cast<int>(DType::kInt64), false);
  const Buffer found(found_in, static_cast<int>(DType::kInt64), true);
  if (found.count() != ids.count())
    throw InvalidArgument(str("room for ", found.count(), " slots of ", ids.count(), " ids"));
  const WithoutGil release;
  kernels::find_ids({span_of<const std::int64_t>(slots), span_of<const std::uint64_t>(known)},
                    span_of<const std::uint64_t>(ids), span_of<std::int64_t>(found).data());
}

void place_ids(const py::object& slots_in, const py::object& known_in, std::size_t first,
               std::size_t end) {
  const Buffer slots(slots_in, static_cast<int>(DType::kInt64), true);
  const Buffer known(known_in, static_cast<int>(DType::kInt64), false);
  const WithoutGil release;
  kernels::place_ids(span_of<std::int64_t>(slots), span_of<const std::uint64_t>(known), first, end);
}

std::size_t merge_rows(const py::object& slots_in, const py::object& rows_in,
                       const py::object& places_in, const py::object& distinct_in,
                       const py::object& sums_in) {
  const Buffer slots(slots_in, static_cast<int>(DType::kInt64), false);
  const Buffer rows(rows_in, static_cast<int>(DType::kFloat32), false);
  const Buffer places(places_in, static_cast<int>(DType::kInt32), true);
  const Buffer distinct(distinct_in, static_cast<int>(DType::kInt64), true);
  const Buffer sums(sums_in, static_cast<int>(DType::kFloat32), true);
  const std::size_t count = slots.count();
  if (count == 0) return 0;
  if (rows.count() % count != 0 || sums.count() != rows.count() || distinct.count() != count)
    throw InvalidArgument(str(count, " slots with ", rows.count(), " values, and room for ",
                              distinct.count(), " and ", sums.count()));
  const WithoutGil release;
  return kernels::merge_rows(span_of<const std::int64_t>(slots), span_of<const float>(rows).data(),
                             rows.count() / count, span_of<std::int32_t>(places),
                             span_of<std::int64_t>(distinct).data(), span_of<float>(sums).data());
}

std::size_t sum_rows(const py::object& ids_in, const py::object& rows_in,
                     const py::object& distinct_in, const py::object& sums_in) {
  const Buffer ids(ids_in, static_cast<int>(DType::kInt64), false);
  const Buffer rows(rows_in, static_cast<int>(DType::kFloat32), false);
  const Buffer distinct(distinct_in, static_cast<int>(DType::kInt64), true);
  const Buffer sums(sums_in, static_cast<int>(DType::kFloat32), true);
  const std::size_t count = ids.count();
  if (count == 0) return 0;
  if (rows.count() % count != 0 || sums.count() != rows.count() || distinct.count() != count)
    throw InvalidArgument(str(count, " ids with ", rows.count(), " values, and room for ",
                              distinct.count(), " and ", sums.count()));
  const WithoutGil release;
  const ps::Distinct found(span_of<const std::uint64_t>(ids), 1);
  const auto each = found.ids();
  found.sum(0, each.size(), span_of<const float>(rows).data(), rows.count() / count,
            span_of<float>(sums).data());
  std::copy(each.begin(), each.end(), span_of<std::uint64_t>(distinct).data());
  return each.size();
}

}  // namespace

void register_replicas(py::module_& module) {
  module.def("offer_rows", &offer_rows, py::arg("weights"), py::arg("base"), py::arg("slots"),
             py::arg("workers"), py::arg("delta"));
  module.def("accept_rows", &accept_rows, py::arg("weights"), py::arg("base"), py::arg("slots"),
             py::arg("server"));
  module.def("find_progress", &find_progress, py::arg("weights"), py::arg("base"), py::arg("dim"),
             py::arg("slots"), py::arg("found"));
  module.def("mark_rows", &mark_rows, py::arg("slots"), py::arg("touches"));
  module.def("find_ids", &find_ids, py::arg("slots"), py::arg("known"), py::arg("ids"),
             py::arg("found"));
  module.def("place_ids", &place_ids, py::arg("slots"), py::arg("known"), py::arg("first"),
             py::arg("end"));
  module.def("merge_rows", &merge_rows, py::arg("slots"), py::arg("rows"), py::arg("places"),
             py::arg("distinct"), py::arg("sums"));
  module.def("sum_rows", &sum_rows, py::arg("ids"), py::arg("rows"), py::arg("distinct"),
             py::arg("sums"));
}

}  // namespace gradring::bind
