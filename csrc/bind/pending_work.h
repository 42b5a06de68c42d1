// _core.Work: an operation in flight, as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <utility>

#include "bind/arrays.h"
#include "bind/gil.h"
#include "collectives/communicator/communicator.h"
#include "transport/links/forks.h"

namespace gradring::bind {

// A negative timeout: the usual one.
inline Millis timeout_of(Millis usual, std::int64_t timeout_ms) {
  return timeout_ms < 0 ? usual : Millis{timeout_ms};
}
inline Millis timeout_of(const collectives::Communicator& communicator, std::int64_t timeout_ms) {
  return timeout_of(communicator.timeout(), timeout_ms);
}

// The arrays that input and output stand for, where they are not the arrays themselves.
struct Apart {
  std::unique_ptr<StridedBuffer> input;
  std::unique_ptr<StridedBuffer> output;

  Packing packing() const {
    return {input ? &input->packed() : nullptr, output ? &output->packed() : nullptr};
  }
};

// An operation in flight and the buffers it uses, which stay exported (and so alive and in place)
// until it is done, even if nobody holds this any more. Made and destroyed with the GIL held.
struct PendingWork {
  PendingWork(std::shared_ptr<collectives::Communicator> used_communicator,
              std::shared_ptr<collectives::Work> started_work,
              std::shared_ptr<collectives::Transfer> started_transfer, Buffer in, Buffer out,
              Buffer third = {})
      : communicator(std::move(used_communicator)),
        work(std::move(started_work)),
        transfer(std::move(started_transfer)),
        input(std::move(in)),
        output(std::move(out)),
        beside(std::move(third)) {}
  PendingWork(PendingWork&&) = default;
  PendingWork& operator=(PendingWork&&) = delete;
  ~PendingWork();

  std::shared_ptr<collectives::Communicator> communicator;
  std::shared_ptr<collectives::Work> work;
  std::shared_ptr<collectives::Transfer> transfer;
  Buffer input;
  Buffer output;
  Buffer beside;
  Apart apart;
  std::uint64_t generation = transport::fork_generation();  // Of the process whose threads do it.

  void wait(std::int64_t timeout_ms) {
    const WithoutGil release;
    if (transfer)
      communicator->wait(transfer, timeout_of(*communicator, timeout_ms));
    else if (timeout_ms < 0)
      communicator->wait(*work, std::nullopt);
    else
      communicator->wait(*work, Millis{timeout_ms});
  }
  // The sender of a message; -1 before a recv from anyone has found one, and for collectives.
  Rank source() const { return transfer && done() ? transfer->peer : -1; }
  bool done() const {
    communicator->check_process();
    return work ? work->is_done() : collectives::PointToPoint::is_done(*transfer);
  }
};

}  // namespace gradring::bind
