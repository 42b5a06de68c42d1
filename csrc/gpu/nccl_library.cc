#include "gpu/nccl_library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "base/error.h"
#include "base/guarded.h"

namespace gradring::gpu {
namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr const char* kVariable = "GRADRING_NCCL_LIB";
constexpr const char* kHowToGetIt = "install the package nvidia-nccl-cu12 (or -cu13, as torch's)";

Guarded<std::vector<std::string>>& wheels() {
  static Guarded<std::vector<std::string>> paths;
  return paths;
}

std::string last_dl_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "dlopen failed";
}

// The handle, or nullptr with what was tried in `tried`.
void* open_first(std::string& tried) {
  if (const char* named = std::getenv(kVariable); named != nullptr && *named != '\0') {
    void* handle = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) tried = str(kVariable, "=", named, ": ", last_dl_error());
    return handle;
  }
  if (void* handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return handle;
  const auto paths = wheels().with([](const auto& known) { return known; });
  for (const std::string& path : paths) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    tried += str(last_dl_error(), "; ");
  }
  void* handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) tried += str(last_dl_error(), "; ", kHowToGetIt);
  return handle;
}

std::string path_of(const void* function) {
  Dl_info info{};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return kName;
  return info.dli_fname;
}

template <typename Function>
void bind(void* handle, const char* symbol, const NcclLibrary& library, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, symbol));
  if (function == nullptr)
    throw DeviceError(
        str("NCCL ", nccl_version_text(library.version), " at ", library.path, " has no ", symbol));
}

NcclLibrary open() {
  std::string tried;
  void* handle = open_first(tried);
  if (handle == nullptr) throw DeviceError(str("NCCL was not found: ", tried));
  NcclLibrary library;
  void* get_version = dlsym(handle, "ncclGetVersion");
  library.path = get_version == nullptr ? std::string(kName) : path_of(get_version);
  bind(handle, "ncclGetVersion", library, library.call.GetVersion);
  if (library.call.GetVersion(&library.version) != nccl::Result::kSuccess)
    throw DeviceError(str("NCCL at ", library.path, " does not tell its version"));
  if (library.version < nccl::kOldestVersion)
    throw DeviceError(str("NCCL ", nccl_version_text(library.version), " at ", library.path,
                          " is too old; ", nccl_version_text(nccl::kOldestVersion),
                          " or newer is needed, and ", kVariable, " can name another file"));
#define GRADRING_NCCL_BIND(name, ...) bind(handle, "nccl" #name, library, library.call.name);
  GRADRING_NCCL_FUNCTIONS(GRADRING_NCCL_BIND)
#undef GRADRING_NCCL_BIND
  return library;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static std::atomic<const NcclLibrary*> opened{nullptr};
  if (const auto* library = opened.load(std::memory_order_acquire)) return *library;
  static std::mutex mutex;  // Only one thread opens.
  const std::lock_guard lock(mutex);
  if (const auto* library = opened.load(std::memory_order_acquire)) return *library;
  static NcclLibrary found;
  found = open();
  opened.store(&found, std::memory_order_release);
  return found;
}

void set_nccl_wheels(std::vector<std::string> paths) {
  wheels().with([&](auto& known) { known = std::move(paths); });
}

// 2.18.3 is 21803; before 2.9 it was 2803.
std::string nccl_version_text(int version) {
  const int thousand = version < 10000 ? 1000 : 10000;
  return str(version / thousand, ".", version % thousand / 100, ".", version % 100);
}

std::string nccl_text(const NcclLibrary& library, nccl::Result result, nccl::Comm comm) {
  const char* what = library.call.GetErrorString(result);
  std::string text = what != nullptr ? what : "unknown error";
  const char* last = library.call.GetLastError(comm);
  if (last != nullptr && *last != '\0') text += str(": ", last);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace gradring::gpu
