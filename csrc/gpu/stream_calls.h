// Calls of the streaming kernels: what reads and writes each element of long vectors once. All
// pointers are device memory (or pinned memory that the device sees) but the call itself and the
// lists in it, which are copied. Vectors lie on their elements' size; on 16 bytes they are faster.
// dtypes and operators are the numbers of base/types.h. Arithmetic is float32 (float64 for its own)
// and a result is rounded once, to nearest, ties to even, with one quiet NaN (kernels/reduce.h).
//
// Every entry only enqueues kernels: it allocates nothing and waits for nothing, so it may be
// captured in a CUDA graph once preload() was called. What changes from replay to replay (scales,
// a step's scalars, whether to skip) is read from memory in stream order. Entries return 0, the
// driver's code, or GRADRING_GPU_BAD_CALL.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

typedef void* gradring_stream;

enum {
  GRADRING_CHUNK_ITEMS = 8192,   // The longest piece that cut_pieces (gpu/chunks.h) makes.
  GRADRING_STREAM_SOURCES = 32,  // Most vectors that one call folds.
};

// A piece of a tensor, and where it lies in its bucket. Tables of them are made once for a layout.
struct gradring_chunk {
  void* tensor;    // The piece's first element.
  uint64_t place;  // Of that element in the bucket, in elements.
  uint32_t count;
  uint32_t unused;
};

struct gradring_chunks {
  const struct gradring_chunk* at;
  uint32_t count;
};

// bucket = cast(tensor * scale), or with a residual, in bfloat16 or float16 only:
//   v = tensor * scale + residual; bucket = cast(v); residual = v - bucket, which is exact
// for what kernels/codec.h says, 0 for what is not finite. Where `saturates`, and always with a
// residual, finite values stay finite: kernels/codec.h's bits. float32, float16, bfloat16 to each
// other; float64 to itself. Without scale, residual and nonfinite, a dtype to itself is a copy of
// any bits.
struct gradring_pack {
  struct gradring_chunks chunks;
  int32_t from;  // The tensors' dtype.
  int32_t to;    // The bucket's.
  void* bucket;
  const float* scale;   // null: 1.
  float* residual;      // One for each element of the bucket; null: none.
  uint32_t* nonfinite;  // Becomes 1 if something written is not finite, else it stays; null: not
                        // looked at.
  int32_t saturates;
};

// tensor = cast(bucket * scale), or (`adds`) cast(tensor + bucket * scale). The same dtypes, and
// copies, as pack.
struct gradring_unpack {
  struct gradring_chunks chunks;
  int32_t from;  // The bucket's dtype.
  int32_t to;    // The tensors'.
  const void* bucket;
  const float* scale;
  uint32_t* nonfinite;
  const uint32_t* skip;  // Where *skip is not 0, nothing is read or written; null: never.
  int32_t adds;
};

// What is folded, from left to right: fold = (((s0 + s1) + s2) + ...) / divisor, kLeft of
// kernels/reduce.h, then * scale.
struct gradring_fold {
  const void* sources[GRADRING_STREAM_SOURCES];
  uint32_t source_count;  // 1 at least.
  uint32_t divisor;       // 1 at least.
  int32_t from;           // The sources' dtype.
  const float* scale;     // null: 1.
  uint64_t count;
};

// dst = cast(fold). Sum and avg: float32 to all three, float16 and bfloat16 to themselves and
// float32, float64 to itself. prod, min, max: a dtype to itself. dst may be one of the sources.
// One source to its own dtype, undivided and without a scale, is copied.
struct gradring_reduce {
  struct gradring_fold fold;
  int32_t op;
  int32_t to;
  void* dst;
  uint32_t* nonfinite;
};

// Looks at tensors. With a scale, tensor = cast(tensor * scale) first. *square_sum += the sum of
// their squares, in float64 and in a fixed order (cuda/check.cuh), which depends on the table of
// chunks and on nothing else.
struct gradring_check {
  struct gradring_chunks chunks;
  int32_t dtype;       // float32, float16, bfloat16, float64.
  const float* scale;  // null: only looked at.
  uint32_t* nonfinite;
  double* square_sum;  // null: not wanted, and no scratch.
  double* scratch;     // check_scratch_bytes; of this call alone.
};

// *factor = max_norm / (sqrt(*square_sum) + 1e-6), at most 1: torch.nn.utils.clip_grad_norm_.
struct gradring_clip {
  const double* square_sum;
  double max_norm;
  float* factor;  // A scale for the calls above and below.
};

// kernels::Scalars<float> (kernels/update_table.h), as kernels::step_scalars makes them.
struct gradring_step_scalars {
  float descent;
  float root_correction;
  float clip_value;
  float weight_decay;
  float shrink;
  float momentum;
  float undampened;
  float mean_weight;
  float square_decay;
  float square_weight;
  float eps;
  uint32_t is_first_step;
  uint32_t is_nesterov;
  uint32_t unused[3];
};

// One step of an update rule on float32 weights, the gradient being the fold of float32, float16 or
// bfloat16 sources, which is not rounded to their dtype. The bits of kernels::update_dense.
struct gradring_step {
  struct gradring_fold fold;
  float* weights;
  float* fields[2];  // sgd: the momentum buffer, null without momentum. adam: exp_avg, exp_avg_sq.
  void* copy;        // The new weights once more as copy_dtype (float16, bfloat16); null: not.
  int32_t copy_dtype;
  const struct gradring_step_scalars* scalars;
  const uint32_t* skip;  // As in unpack: an overflow's flag, say.
};

struct gradring_stream_kernels {
  uint32_t bytes;  // sizeof of the plugin's own table.
  int (*pack)(int device, const struct gradring_pack* call, gradring_stream stream);
  int (*unpack)(int device, const struct gradring_unpack* call, gradring_stream stream);
  int (*reduce)(int device, const struct gradring_reduce* call, gradring_stream stream);
  int (*check)(int device, const struct gradring_check* call, gradring_stream stream);
  size_t (*check_scratch_bytes)(uint32_t chunk_count);
  int (*clip)(int device, const struct gradring_clip* call, gradring_stream stream);
  int (*sgd)(int device, const struct gradring_step* call, gradring_stream stream);
  int (*adam)(int device, const struct gradring_step* call, gradring_stream stream);
  // Brings the kernels to the device, which a first launch would do, within a capture too late.
  int (*preload)(int device);
};
}
