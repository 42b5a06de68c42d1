// _core.gpu_*: the runtime table of the GPU plugin, with numbers for pointers, streams and events.
// For gradring/gpu/runtime.py, which gives them owners. Calls that wait let the GIL go.
#include <pybind11/pybind11.h>

#include <cstdint>

#include "bind/gil.h"
#include "bind/module.h"
#include "gpu/plugin.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using Address = std::uintptr_t;

const gradring_gpu_runtime& runtime() {
  return *gpu::devices().runtime;
}

template <typename T = void>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT: Python holds pointers as numbers.
}

Address number(const void* address) {
  return reinterpret_cast<Address>(address);
}

py::tuple place_of(Address address) {
  int kind = 0;
  int device = 0;
  gpu::check(runtime().pointer_facts(pointer(address), &kind, &device), "looking at a pointer");
  return py::make_tuple(kind, device);
}

bool is_done(int code, const char* what) {
  if (code == GRADRING_GPU_NOT_READY) return false;
  gpu::check(code, what);
  return true;
}

void register_memory(py::module_& module) {
  const py::call_guard<WithoutGil> no_gil;
  module.def(
      "gpu_alloc",
      [](int device, std::size_t bytes) {
        void* address = nullptr;
        gpu::check(runtime().alloc(device, bytes, &address), "allocating memory on the device");
        return number(address);
      },
      py::arg("device"), py::arg("size"), no_gil);
  module.def(
      "gpu_free",
      [](int device, Address address) {
        gpu::check(runtime().free(device, pointer(address)), "freeing memory of the device");
      },
      py::arg("device"), py::arg("address"), no_gil);
  module.def(
      "gpu_pinned_alloc",
      [](std::size_t bytes) {
        void* address = nullptr;
        gpu::check(runtime().pinned_alloc(bytes, &address), "allocating pinned memory");
        return number(address);
      },
      py::arg("size"), no_gil);
  module.def(
      "gpu_pinned_free",
      [](Address address) {
        gpu::check(runtime().pinned_free(pointer(address)), "freeing pinned memory");
      },
      py::arg("address"), no_gil);
  module.def(
      "gpu_copy",
      [](int device, Address to, Address from, std::size_t bytes, Address stream) {
        gpu::check(runtime().copy(device, pointer(to), pointer(from), bytes, pointer(stream)),
                   "copying");
      },
      py::arg("device"), py::arg("to"), py::arg("source"), py::arg("size"), py::arg("stream"),
      no_gil);
  module.def(
      "gpu_fill",
      [](int device, Address to, int value, std::size_t bytes, Address stream) {
        gpu::check(runtime().fill(device, pointer(to), value, bytes, pointer(stream)), "filling");
      },
      py::arg("device"), py::arg("to"), py::arg("value"), py::arg("size"), py::arg("stream"),
      no_gil);
}

void register_streams(py::module_& module) {
  const py::call_guard<WithoutGil> no_gil;
  module.def(
      "gpu_stream_create",
      [](int device, bool is_urgent) {
        gradring_stream stream = nullptr;
        gpu::check(runtime().stream_create(device, is_urgent ? 1 : 0, &stream), "making a stream");
        return number(stream);
      },
      py::arg("device"), py::arg("is_urgent") = false, no_gil);
  module.def(
      "gpu_stream_destroy",
      [](int device, Address stream) {
        gpu::check(runtime().stream_destroy(device, pointer(stream)), "ending a stream");
      },
      py::arg("device"), py::arg("stream"), no_gil);
  module.def(
      "gpu_stream_query",
      [](int device, Address stream) {
        return is_done(runtime().stream_query(device, pointer(stream)), "looking at a stream");
      },
      py::arg("device"), py::arg("stream"), no_gil);
  module.def(
      "gpu_stream_synchronize",
      [](int device, Address stream) {
        gpu::check(runtime().stream_synchronize(device, pointer(stream)), "waiting for a stream");
      },
      py::arg("device"), py::arg("stream"), no_gil);
  module.def(
      "gpu_stream_wait_event",
      [](int device, Address stream, Address event) {
        gpu::check(runtime().stream_wait_event(device, pointer(stream), pointer(event)),
                   "ordering a stream after an event");
      },
      py::arg("device"), py::arg("stream"), py::arg("event"), no_gil);
}

void register_events(py::module_& module) {
  const py::call_guard<WithoutGil> no_gil;
  module.def(
      "gpu_event_create",
      [](int device, bool is_timed) {
        gradring_event event = nullptr;
        gpu::check(runtime().event_create(device, is_timed ? 1 : 0, &event), "making an event");
        return number(event);
      },
      py::arg("device"), py::arg("is_timed") = false, no_gil);
  module.def(
      "gpu_event_destroy",
      [](int device, Address event) {
        gpu::check(runtime().event_destroy(device, pointer(event)), "ending an event");
      },
      py::arg("device"), py::arg("event"), no_gil);
  module.def(
      "gpu_event_record",
      [](int device, Address event, Address stream) {
        gpu::check(runtime().event_record(device, pointer(event), pointer(stream)),
                   "recording an event");
      },
      py::arg("device"), py::arg("event"), py::arg("stream"), no_gil);
  module.def(
      "gpu_event_query",
      [](Address event) {
        return is_done(runtime().event_query(pointer(event)), "looking at an event");
      },
      py::arg("event"), no_gil);
  module.def(
      "gpu_event_synchronize",
      [](Address event) {
        gpu::check(runtime().event_synchronize(pointer(event)), "waiting for an event");
      },
      py::arg("event"), no_gil);
  module.def(
      "gpu_event_elapsed_ms",
      [](Address from, Address to) {
        float ms = 0;
        gpu::check(runtime().event_elapsed_ms(pointer(from), pointer(to), &ms),
                   "reading the time between events");
        return ms;
      },
      py::arg("begin"), py::arg("end"), no_gil);
}

}  // namespace

void register_gpu_runtime(py::module_& module) {
  module.def("gpu_device_count", [] {
    int count = 0;
    const int code = gpu::plugin().runtime->device_count(&count);
    return code == GRADRING_GPU_OK ? count : 0;
  });
  module.def("gpu_place", &place_of, py::arg("address"));
  register_memory(module);
  register_streams(module);
  register_events(module);
}

}  // namespace gradring::bind
