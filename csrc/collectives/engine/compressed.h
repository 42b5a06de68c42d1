// All-reduce of float32 vectors whose bytes are few: every rank sends each other rank its part,
// encoded; a part's owner adds them to its own values in rank order, encodes the sum and passes it
// on to all. The same schedule for every codec. What encodings leave out stays in the residuals: of
// a rank's own vector in the others' parts, of the sum in its own part. Runs on the thread that
// drives the communicator.
#pragma once

#include <cstdint>
#include <functional>

#include "collectives/plan/operation.h"
#include "kernels/codec.h"

namespace gradring::collectives {

struct Compressed {
  kernels::Codec codec;
  std::uint64_t count = 0;
  float* values = nullptr;             // The result replaces them: the same bits on every rank.
  float* residual = nullptr;           // As many; null: what is left out is lost.
  const double* divisor_at = nullptr;  // Read when the sum is there; 0 or null: not divided.
};

// What a rank sends to others.
std::uint64_t compressed_bytes(const kernels::Codec& codec, std::uint64_t count, Rank rank,
                               Rank ranks);

// `execute` carries out one collective. Throws Mismatch if another rank used another codec, and
// what `execute` throws.
void all_reduce_compressed(const Compressed& what, Rank rank, Rank ranks,
                           const std::function<void(const Operation&)>& execute);

}  // namespace gradring::collectives
