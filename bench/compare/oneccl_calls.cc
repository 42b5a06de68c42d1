// oneCCL's calls on host memory for Python: its C interface has none. bench/compare builds it where
// the wheel is; python/gradring/bench/peers/oneccl.py calls it. All calls return once done.
#include <oneapi/ccl.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

constexpr int kAttempts = 6000;  // 10 ms apart.

std::unique_ptr<ccl::communicator> world;

ccl::shared_ptr_class<ccl::kvs> meet(const std::string& path, int rank) {
  if (rank == 0) {
    auto store = ccl::create_main_kvs();
    const auto address = store->get_address();
    std::ofstream(path + ".part", std::ios::binary)
        .write(address.data(), static_cast<long>(address.size()));
    std::rename((path + ".part").c_str(), path.c_str());
    return store;
  }
  ccl::kvs::address_type address;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::ifstream file(path, std::ios::binary);
    if (file.read(address.data(), static_cast<long>(address.size())))
      return ccl::create_kvs(address);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("oneCCL: rank 0 did not write " + path);
}

}  // namespace

extern "C" {

void oneccl_join(const char* path, int rank, int size) {
  ccl::init();
  world =
      std::make_unique<ccl::communicator>(ccl::create_communicator(size, rank, meet(path, rank)));
}

void oneccl_barrier() {
  ccl::barrier(*world).wait();
}

void oneccl_all_reduce(float* x, std::size_t count) {
  ccl::allreduce(x, x, count, ccl::datatype::float32, ccl::reduction::sum, *world).wait();
}

void oneccl_reduce_scatter(const float* x, float* y, std::size_t count) {
  ccl::reduce_scatter(x, y, count, ccl::datatype::float32, ccl::reduction::sum, *world).wait();
}

void oneccl_all_gather(const float* x, float* y, std::size_t count) {
  ccl::vector_class<std::size_t> counts(static_cast<std::size_t>(world->size()), count);
  ccl::allgatherv(x, count, y, counts, ccl::datatype::float32, *world).wait();
}

void oneccl_broadcast(float* x, std::size_t count) {
  ccl::broadcast(x, count, ccl::datatype::float32, 0, *world).wait();
}

const char* oneccl_version() {
  static const std::string text = std::to_string(ccl::get_library_version().major) + "." +
                                  std::to_string(ccl::get_library_version().minor);
  return text.c_str();
}

void oneccl_leave() {
  world.reset();
}

}  // extern "C"
