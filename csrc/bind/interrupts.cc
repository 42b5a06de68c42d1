// Ctrl-C in a wait: waits ask a few times a second whether a Python signal handler wants to raise.
#include "transport/links/interrupts.h"
#include "bind/gil.h"
#include "bind/module.h"

namespace gradring::bind {
namespace {

// One exception a thread: it is raised on the thread whose wait it ended.
thread_local PyObject* pending_type = nullptr;
thread_local PyObject* pending_value = nullptr;
thread_local PyObject* pending_trace = nullptr;

void check_signals() {
  bool has_raised = false;
  with_gil_again([&] {
    if (PyErr_CheckSignals() == 0) return;
    PyErr_Fetch(&pending_type, &pending_value, &pending_trace);
    has_raised = true;
  });
  if (has_raised) throw Interrupted("a signal handler raised");
}

}  // namespace

bool restore_interrupt() {
  if (pending_type == nullptr) return false;
  PyErr_Restore(pending_type, pending_value, pending_trace);
  pending_type = pending_value = pending_trace = nullptr;
  return true;
}

void register_interrupts() {
  transport::set_interrupt_check(&check_signals);
}

}  // namespace gradring::bind
