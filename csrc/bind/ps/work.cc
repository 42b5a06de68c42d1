#include "bind/ps/work.h"

#include <utility>
#include <vector>

#include "bind/abandoned.h"
#include "bind/gil.h"

namespace gradring::bind {
namespace {

namespace py = pybind11;

struct LeftCall {
  std::shared_ptr<ps::Call> call;
  std::vector<Buffer> buffers;

  bool is_over() const { return call->is_done(); }
};

}  // namespace

PsWork::~PsWork() {
  abandoned<LeftCall>().release_finished();
  if (call && !call->is_done()) abandoned<LeftCall>().add({std::move(call), std::move(buffers)});
}

py::object PsWork::wait(std::int64_t timeout_ms) {
  {
    const WithoutGil release;
    client->wait(call, timeout_ms < 0 ? kForGood : Millis{timeout_ms});
  }
  return result(*call);
}

void PsWork::abandon() {
  const WithoutGil release;
  client->abandon(call);
}

}  // namespace gradring::bind
