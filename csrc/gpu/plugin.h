// The GPU plugin: found beside this library (or where $GRADRING_GPU_PLUGIN says), opened when a GPU
// is first needed and never closed. Nobody pays for a GPU who has none: before that, no file of
// CUDA's is touched. Callable from any thread.
#pragma once

#include <string>

#include "gpu/api.h"

namespace gradring::gpu {

// The plugin's functions; whether there is a driver or a device they tell themselves. Throws
// DeviceError where this build has no plugin, or the file does not load or is of another version.
const gradring_gpu_api& plugin();

// The same, but there is at least one device to call them for. Throws DeviceError also where the
// driver is missing or too old, or no device is visible.
const gradring_gpu_api& devices();

// Throws DeviceError "<what>: <the driver's text>" unless code is 0.
void check(int code, const char* what);

// Where the plugin is or would be. Opens nothing.
struct PluginPlace {
  std::string path;
  bool is_there = false;
  bool is_named = false;  // By $GRADRING_GPU_PLUGIN.
};
PluginPlace plugin_place();

// How this library was built: "CUDA 13.0.88 for 80-real, 90-real, 100", or "" without a plugin; and
// why so.
const char* built_for();
const char* built_why();

}  // namespace gradring::gpu
