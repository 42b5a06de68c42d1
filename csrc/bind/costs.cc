// The cost model for Python: what would be chosen, what the model expects of each algorithm, and
// the kernels' rate. Used by `gradring doctor` and `gradring tune`; no ranks are needed.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "bind/gil.h"
#include "bind/module.h"
#include "bind/operations.h"
#include "collectives/flat/flat.h"
#include "collectives/plan/choose.h"
#include "kernels/reduce.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using collectives::Algorithm;
using collectives::Request;

LinkCosts costs_from(const std::array<double, 4>& figures) {
  return {figures[0], figures[1], figures[2], figures[3]};
}

std::array<double, 4> figures_of(const LinkCosts& costs) {
  return {costs.latency_us, costs.bandwidth_gb_s, costs.reduce_gb_s, costs.further_link};
}

Costs default_costs(double path_us) {
  return {{"tcp", figures_of(collectives::costs_at(collectives::loopback_costs(), path_us))},
          {"shm", figures_of(collectives::shared_memory_costs())}};
}

// As Engine::complete makes it, where no order was asked for.
Request request_of(std::uint8_t op, std::uint8_t dtype, std::uint64_t count, Rank ranks) {
  constexpr auto kLast = static_cast<std::uint8_t>(OpKind::kAllToAll);
  if (op > kLast || dtype >= kDTypeCount || ranks < 1)
    throw InvalidArgument(
        str("there is no operation ", int{op}, " of type ", int{dtype}, " on ", ranks, " ranks"));
  Request request = operation_of(op, 0, 0, count, std::nullopt, std::nullopt, 0, false).request;
  request.dtype = static_cast<DType>(dtype);
  request.world_size = ranks;
  request.order = collectives::order_for(request.op, ranks, bytes_of(request), request.dtype);
  return request;
}

// As Engine::decide, on one host or on hosts with one rank each.
std::string choose(std::uint8_t op, std::uint8_t dtype, std::uint64_t count, Rank ranks,
                   bool shares_memory, const std::array<double, 4>& costs) {
  const Request request = request_of(op, dtype, count, ranks);
  if (shares_memory && collectives::Flat::supports(request))
    return std::string(name(Algorithm::kFlat));
  return std::string(name(collectives::choose(request, costs_from(costs))));
}

// Of every algorithm that adds in the order that is settled for this size, or in any.
std::map<std::string, double> estimates(std::uint8_t op, std::uint8_t dtype, std::uint64_t count,
                                        Rank ranks, const std::array<double, 4>& costs,
                                        bool any_order) {
  Request request = request_of(op, dtype, count, ranks);
  std::map<std::string, double> found;
  const auto add = [&] {
    for (const Algorithm algorithm : algorithms_for(request))
      found[std::string(name(algorithm))] = estimate_us(request, algorithm, costs_from(costs));
  };
  add();
  if (any_order) {
    for (const auto order : {collectives::Order::kRing, collectives::Order::kTree}) {
      request.order = order;
      add();
    }
  }
  return found;
}

// Seconds that each of `repeats` additions of two float32 vectors of `bytes` took.
std::vector<double> time_additions(std::size_t bytes, int repeats) {
  const std::vector<float> a(bytes / sizeof(float), 1.0F);
  const std::vector<float> b(a);
  std::vector<float> sum(a);
  const std::array<const std::byte*, 2> sources = {reinterpret_cast<const std::byte*>(a.data()),
                                                   reinterpret_cast<const std::byte*>(b.data())};
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const Time begin = Clock::now();
    kernels::reduce(reinterpret_cast<std::byte*>(sum.data()), sources, a.size(), {});
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return seconds;
}

}  // namespace

CostProfile profile_of(const Costs& costs) {
  CostProfile profile;
  for (const auto& [transport, figures] : costs) {
    const LinkCosts link = costs_from(figures);
    if (!is_sound(link)) throw InvalidArgument(str("the costs of '", transport, "' make no sense"));
    if (transport == "tcp")
      profile.tcp = link;
    else if (transport == "shm")
      profile.shared_memory = link;
    else
      throw InvalidArgument(str("costs of '", transport, "': not one of tcp, shm"));
  }
  return profile;
}

void register_costs(py::module_& module) {
  module.def("default_costs", &default_costs, py::arg("path_us") = 0.0);
  module.def("choose", &choose, py::arg("op"), py::arg("dtype"), py::arg("count"), py::arg("ranks"),
             py::arg("shares_memory"), py::arg("costs"));
  module.def("estimates", &estimates, py::arg("op"), py::arg("dtype"), py::arg("count"),
             py::arg("ranks"), py::arg("costs"), py::arg("any_order") = false);
  module.def("time_additions", &time_additions, py::arg("size_bytes"), py::arg("repeats"),
             py::call_guard<WithoutGil>());
}

}  // namespace gradring::bind
