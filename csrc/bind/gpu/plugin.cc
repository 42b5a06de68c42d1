// _core.gpu_build, gpu_driver and gpu_devices: what gradring/machine/build.py tells of the GPU
// plugin.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bind/gil.h"
#include "bind/module.h"
#include "gpu/plugin.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;

py::dict build() {
  const gpu::PluginPlace place = gpu::plugin_place();
  py::dict facts;
  facts["built_for"] = gpu::built_for();
  facts["built_why"] = gpu::built_why();
  facts["path"] = place.path;
  facts["is_there"] = place.is_there;
  return facts;
}

// The plugin's own name, and the CUDA version of the driver: 13000 for 13.0, 0 without a driver.
py::tuple driver() {
  int version = 0;
  const char* build = nullptr;
  {
    const WithoutGil release;
    const gradring_gpu_api& api = gpu::plugin();
    build = api.build;
    static_cast<void>(api.runtime->driver_version(&version));
  }
  return py::make_tuple(build, version);
}

std::vector<gradring_device_facts> all_facts() {
  const gradring_gpu_api& api = gpu::devices();
  int count = 0;
  gpu::check(api.runtime->device_count(&count), "counting devices");
  std::vector<gradring_device_facts> facts(static_cast<std::size_t>(count));
  for (int device = 0; device < count; ++device)
    gpu::check(api.runtime->device_facts(device, &facts[static_cast<std::size_t>(device)]),
               "asking what a device is");
  return facts;
}

py::list devices() {
  std::vector<gradring_device_facts> found;
  {
    const WithoutGil release;
    found = all_facts();
  }
  py::list devices;
  for (const gradring_device_facts& facts : found) {
    py::dict device;
    device["name"] = facts.name;
    device["bus_id"] = facts.bus_id;
    device["capability"] = py::make_tuple(facts.major, facts.minor);
    device["multiprocessors"] = facts.multiprocessors;
    device["memory_bytes"] = facts.memory_bytes;
    device["l2_bytes"] = facts.l2_bytes;
    device["can_wait_on_memory"] = facts.can_wait_on_memory != 0;
    devices.append(device);
  }
  return devices;
}

}  // namespace

void register_gpu_plugin(py::module_& module) {
  module.def("gpu_build", &build);
  module.def("gpu_driver", &driver);
  module.def("gpu_devices", &devices);
}

}  // namespace gradring::bind
