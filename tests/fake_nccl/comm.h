// The fake NCCL's communicator: its state as callers ask for it, and its operations, which run in
// streams. It is stricter than NCCL: a call that NCCL's documentation forbids ends the process.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "fake_nccl/segment.h"
#include "fake_nccl/streams.h"
#include "gpu/nccl_api.h"

namespace fake {

using gradring::gpu::nccl::DataType;
using gradring::gpu::nccl::RedOp;
using gradring::gpu::nccl::Result;

struct Multiplier {
  RedOp op;
  double factor;
};

// One call of the API, with what it was given.
struct Operation {
  std::string name;
  const char* input = nullptr;
  char* output = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kInt8;
  RedOp op = RedOp::kSum;
  double factor = 1;  // Before the values are added; of RedOpCreatePreMulSum.
  int root = -1;      // Or the peer.
  bool hangs = false;
};

struct Comm {
  Comm(std::string named, int its_rank, int its_size, int its_device)
      : id(std::move(named)), rank(its_rank), size(its_size), device(its_device) {
    segment = std::make_unique<Segment>(id, rank, size, is_aborted);
  }

  const std::string id;
  const int rank;
  const int size;
  const int device;
  std::atomic<Result> state{Result::kInProgress};
  std::atomic<int> polls_to_go{0};  // Until what is in progress is over.
  std::atomic<bool> is_aborted{false};
  std::unique_ptr<Segment> segment;
  std::vector<Multiplier> multipliers;
  int splits = 0;
};

std::size_t bytes_of(DataType type);

// Carries out what one group holds, on the stream's thread.
void run(Comm& comm, std::vector<Operation> operations);

}  // namespace fake
