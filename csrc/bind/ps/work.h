// _core.PsWork: an asynchronous call to the parameter server, as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <vector>

#include "bind/arrays.h"
#include "ps/client/client.h"

namespace gradring::bind {

// The buffers stay exported (and so alive and in place) until the call is done, even if nobody
// holds this any more. Made and destroyed with the GIL held.
struct PsWork {
  using Result = std::function<pybind11::object(ps::Call&)>;

  PsWork(std::shared_ptr<ps::Client> used_client, std::shared_ptr<ps::Call> started_call,
         std::vector<Buffer> used_buffers, Result make_result)
      : client(std::move(used_client)),
        call(std::move(started_call)),
        buffers(std::move(used_buffers)),
        result(std::move(make_result)) {}
  PsWork(PsWork&&) = default;
  PsWork& operator=(PsWork&&) = delete;
  ~PsWork();

  // A negative timeout: as long as the call itself goes on.
  pybind11::object wait(std::int64_t timeout_ms);
  // Ends it, if it is not done: nothing is written to its buffers any more.
  void abandon();
  bool done() const { return call->is_done(); }
  // Takes the failure from nobody: who waits, or flushes, still gets it.
  bool failed() const { return call->is_done() && call->failure(); }

  std::shared_ptr<ps::Client> client;
  std::shared_ptr<ps::Call> call;
  std::vector<Buffer> buffers;
  Result result;
};

}  // namespace gradring::bind
