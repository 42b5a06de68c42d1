// Calls of the codec kernels: fewer bytes for float32 vectors, in the formats of kernels/codec.h
// and with its bits, so that ranks with and without a GPU take part in one collective. (A NaN that
// an addition in memory gives is the one NaN of kernels/reduce.h here, the processor's choice
// there; no encoding shows which.) All pointers are device memory. Vectors of floats lie on 4
// bytes, encoded bytes anywhere; on 16 both are faster. Scratch memory lies on 16 bytes and belongs
// to one call at a time.
//
// Every entry only enqueues kernels: it allocates nothing and waits for nothing, so it may be
// captured in a CUDA graph once preload() was called. It returns 0, the driver's code, or
// GRADRING_GPU_BAD_CALL. What goes wrong in a kernel (values that are not finite) is written where
// the call says.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

typedef void* gradring_stream;

enum {
  GRADRING_CODEC_SOURCES = 32,  // Most vectors that one call adds up; more are added by another.
  // More elements than that do not fit the counters of a sparsify.
  GRADRING_SPARSIFY_ELEMENTS = 0x3FFFFFFF,
};

// v = values + residual (null: 0) -> out; residual = v - decoded. kernels::encode with kInt8.
struct gradring_quantise {
  const float* values;
  float* residual;
  uint64_t count;
  void* out;            // encoded_bytes(kInt8, count): all scales, then all codes.
  uint32_t* nonfinite;  // Becomes 1 if a value was not finite; else it stays. May be null.
};

// What is added up, from left to right.
struct gradring_codec_sources {
  const void* at[GRADRING_CODEC_SOURCES];
  int32_t count;  // 1 at least.
  int32_t plain;  // The number of a source that is float32 values as they are, or -1.
};

enum gradring_sum_start {
  GRADRING_SUM_FROM_FIRST = 0,  // The first source.
  GRADRING_SUM_FROM_ZERO = 1,   // 0 + the first source, which makes a zero of a negative one.
  GRADRING_SUM_FROM_DST = 2,    // What is in dst.
};

// dst = the sum, each addition rounded to float32, divided by `divisor` unless that is 0 or 1.
// One source and FROM_FIRST or FROM_DST: kernels::decode with kInt8. dst may be a plain source.
struct gradring_dequantise {
  struct gradring_codec_sources sources;
  uint64_t count;
  float* dst;
  int32_t start;  // gradring_sum_start.
  float divisor;
  const float* divisor_at;  // Read in stream order instead of `divisor`; may be null.
};

// The middle of an all-reduce: the sum of the sources (FROM_FIRST or FROM_ZERO) is quantised as
// above without a visit to memory.
struct gradring_requantise {
  struct gradring_codec_sources sources;
  uint64_t count;
  float* residual;
  void* out;
  int32_t start;
  uint32_t* nonfinite;
};

// The `kept` largest magnitudes of v = values + residual (null: 0), of equals the first: all
// indices, ascending, then all values. residual = v without them. kernels::encode with kTopK.
struct gradring_sparsify {
  const float* values;
  float* residual;
  uint64_t count;  // At most GRADRING_SPARSIFY_ELEMENTS.
  uint64_t kept;   // 1..count (0 for a count of 0).
  void* out;       // kept * 8 bytes.
  void* scratch;   // sparsify_scratch_bytes(count).
};

// The same with a threshold that is known: what has at least that magnitude, or is not finite, in
// the order of indices and `capacity` at most. The encoding always has room for `capacity`; places
// without an element have an index out of range, which decoders leave out.
struct gradring_sparsify_above {
  const float* values;
  float* residual;
  uint64_t count;
  uint64_t capacity;
  float threshold;
  const float* threshold_at;  // Read in stream order instead of `threshold`; may be null.
  void* out;                  // capacity * 8 bytes.
  uint32_t* kept_at;          // How many there were, also those that found no room; may be null.
  void* scratch;              // sparsify_scratch_bytes(count).
};

// dst = 0 (`adds`: dst as it is) + what is encoded. No index may be there twice. kernels::decode
// with kTopK.
struct gradring_desparsify {
  const void* from;
  uint64_t kept;
  uint64_t count;
  float* dst;
  int32_t adds;
};

struct gradring_codec_kernels {
  uint32_t bytes;  // sizeof of the plugin's own table.
  int (*quantise)(int device, const struct gradring_quantise* call, gradring_stream stream);
  int (*dequantise)(int device, const struct gradring_dequantise* call, gradring_stream stream);
  int (*requantise)(int device, const struct gradring_requantise* call, gradring_stream stream);
  uint64_t (*sparsify_scratch_bytes)(uint64_t count);
  int (*sparsify)(int device, const struct gradring_sparsify* call, gradring_stream stream);
  int (*sparsify_above)(int device, const struct gradring_sparsify_above* call,
                        gradring_stream stream);
  int (*desparsify)(int device, const struct gradring_desparsify* call, gradring_stream stream);
  // Brings the kernels to the device, which a first launch would do, within a capture too late.
  int (*preload)(int device);
};
}
