// The interpreter's lock, let go of while the core works and taken again after it: in the end, no
// more.
//
// When the interpreter ends, whoever asks for its lock on another thread has that thread taken away
// by pthread_exit, which no C++ frame on the way survives: the process aborts, of a job that has
// done all it should. So threads that come out of the core then stay where they are. (Python 3.14
// does the same by itself.)
#pragma once

#include <pybind11/pybind11.h>

#include <functional>

namespace gradring::bind {

// Without the lock while it lives. With the lock held on this thread.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// On a thread that is WithoutGil: runs `act` with the lock, or not at all if the interpreter ends.
void with_gil_again(const std::function<void()>& act);

// To be called once, before anything else is registered with atexit: so that it runs last.
void register_end_of_interpreter();
// Objects of transport::make_here end without the lock from now on.
void register_deletions();

}  // namespace gradring::bind
