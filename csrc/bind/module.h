// What the files of the binding offer each other.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <exception>
#include <map>
#include <string>

#include "base/error.h"
#include "kernels/codec.h"
#include "transport/joining/rendezvous.h"

namespace gradring::bind {

void register_errors(pybind11::module_& module);
void register_communicator(pybind11::module_& module);
void register_costs(pybind11::module_& module);
void register_ps_client(pybind11::module_& module);
void register_ps_probe(pybind11::module_& module);
void register_ps_server(pybind11::module_& module);
void register_quick(pybind11::module_& module);
void register_replicas(pybind11::module_& module);
void register_gpu_compressed(pybind11::module_& module);
void register_gpu_hosts(pybind11::module_& module);
void register_gpu_kernels(pybind11::module_& module);
void register_gpu_nccl(pybind11::module_& module);
void register_gpu_plugin(pybind11::module_& module);
void register_gpu_runtime(pybind11::module_& module);
void register_gpu_staged(pybind11::module_& module);
void register_gradients(pybind11::module_& module);
void register_interrupts();
void register_ps_files(pybind11::module_& module);
void register_rules(pybind11::module_& module);
void register_spans(pybind11::module_& module);
void register_tensors(pybind11::module_& module);

// "auto", "shm", "tcp". Throws InvalidArgument.
transport::TransportMode mode_of(const std::string& text);

// The codec of a number. Throws InvalidArgument.
kernels::Codec codec_of(std::uint8_t kind, double ratio);

// By transport: latency in us, bandwidth and reduce rate in GB/s, part of a step for a further
// link.
using Costs = std::map<std::string, std::array<double, 4>>;
// Throws InvalidArgument.
CostProfile profile_of(const Costs& costs);

// An instance of the Python class that belongs to `failure`.
pybind11::object to_python(const Failure& failure);

// Sets the Python error that belongs to a C++ exception. With the GIL.
void set_python_error(const std::exception_ptr& pointer) noexcept;

// Puts the exception that a signal handler raised during a wait back into the interpreter. False if
// there is none. With the GIL.
bool restore_interrupt();

}  // namespace gradring::bind
