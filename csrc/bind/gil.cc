#include "bind/gil.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "transport/links/forks.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;
using namespace std::chrono_literals;

constexpr auto kPatience = 2s;  // For threads that wait for the lock when the end begins.

// Sequentially consistent, both: a thread either sees that the end has begun, or is counted.
std::atomic<bool> is_ending{false};
std::atomic<int> taking{0};     // Threads that may be asking for the lock.
std::thread::id ending_thread;  // Written before is_ending.

// Whether this thread may ask for the lock: then it is counted.
bool begin_taking() {
  taking.fetch_add(1);
  if (!is_ending.load() || std::this_thread::get_id() == ending_thread) return true;
  taking.fetch_sub(1);
  return false;
}

void end_taking() {
  taking.fetch_sub(1);
}

[[noreturn]] void stay() {
  while (true) ::pause();
}

// At exit, with the lock. Daemon threads are all that is left besides this one.
void begin_end() {
  ending_thread = std::this_thread::get_id();
  is_ending.store(true);
  PyThreadState* const state = PyEval_SaveThread();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (taking.load() > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(100us);
  PyEval_RestoreThread(state);
}

// What ends may join a thread that just wants the lock to ask for signals.
void delete_without_gil(const std::function<void()>& deletion) {
  if (PyGILState_Check() == 0) return deletion();
  const WithoutGil no_gil;
  deletion();
}

}  // namespace

WithoutGil::~WithoutGil() {
  if (!begin_taking()) stay();
  PyEval_RestoreThread(state_);
  end_taking();
}

void with_gil_again(const std::function<void()>& act) {
  if (!begin_taking()) return;
  const py::gil_scoped_acquire gil;
  end_taking();
  act();
}

void register_end_of_interpreter() {
  // Of the parent's threads that were just asking for the lock none is in a forked child.
  ::pthread_atfork(nullptr, nullptr, [] { taking.store(0); });
  py::module_::import("atexit").attr("register")(py::cpp_function(&begin_end));
}

void register_deletions() {
  transport::set_deletion(&delete_without_gil);
}

}  // namespace gradring::bind
