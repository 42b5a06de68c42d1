// Runs the blocks of a launch on the CPU, each CUDA thread a fiber that is left only where it waits
// for others. So what one thread writes and another reads without a barrier between them is read
// wrongly in one order or another: run with all three. Blocks run one after another on the calling
// thread; several threads may run launches at once. No memory model, no asynchronous copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>

namespace gradring::emulator {

// What a GPU would hang on, or leave undefined.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// In which order threads run from one wait to the next, and blocks.
enum class Order { kForward, kReverse, kRandom };
// For launches that begin from now on, of all threads. `seed` is kRandom's.
void set_order(Order order, std::uint64_t seed = 0);

// What puts a launch (or a memset) into its stream; returns 0 or a driver's code. Without one it
// runs at once. `work` throws Fault.
using Work = std::function<void()>;
using StreamHook = int (*)(void* stream, Work work);
void set_stream_hook(StreamHook hook);
int enqueue(void* stream, Work work);

struct Index {
  unsigned x = 0, y = 0, z = 0;
  std::size_t volume() const { return std::size_t{x} * y * z; }
};

// Where the running thread is. The same for all threads of a block but `thread`.
struct Place {
  Index thread, block, block_size, grid_size;
  void* shared = nullptr;  // Dynamic shared memory.
};
extern thread_local Place place;

struct Shape {
  Index grid, block;
  std::size_t shared_bytes = 0;
};
inline constexpr unsigned kMostThreads = 1024;
inline constexpr std::size_t kMostSharedBytes = 227 * 1024;
bool is_valid(const Shape& shape);
// Calls `thread` once for each thread of the grid. Throws Fault.
void run_grid(const Shape& shape, const std::function<void()>& thread);

// Called by the threads.
using Site = std::source_location;
// Waits for all threads of the block that have not ended; returns how many said `predicate`.
int block_barrier(bool predicate, Site site);

inline constexpr unsigned kWarp = 32;
struct Exchanged {
  std::uint32_t present = 0;  // The lanes that took part.
  std::uint64_t values[kWarp];
};
unsigned lane_number();
// Waits for the lanes of `mask` that have not ended, and returns what each of them brought.
Exchanged warp_exchange(std::uint32_t mask, std::uint64_t value, Site site);

}  // namespace gradring::emulator
