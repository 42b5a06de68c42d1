// Calls of the row kernels: tables of rows in device memory, addressed by slots; lists of ids that
// have some of them many times. The bits are those of the CPU path (ps/tables/merge.h,
// kernels/update.h); a sum that is a NaN is the one NaN of kernels/reduce.h. All pointers are
// device memory and lie on their type's size; rows on 16 bytes, a multiple of 16 bytes long and
// apart, are faster. Scratch memory lies on 16 bytes and belongs to one call at a time.
//
// Every entry only enqueues kernels: it allocates nothing and waits for nothing, so it may be
// captured in a CUDA graph once preload() was called. It returns 0, the driver's code, or
// GRADRING_GPU_BAD_CALL. How many rows there are may be known to the device alone: counts are given
// as a most, for which there is room, and a word with the count.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

typedef void* gradring_stream;

enum {
  GRADRING_ROW_IDS = 0x3FFFFFFF,  // Most ids in a list.
  GRADRING_RULE_FIELDS = 2,       // Most fields of a rule's state that a step here can have.
};

// Groups equal ids. Place p (of *unique_count, in the order of the ids' values) has the id
// unique_ids[p], which occurs at positions[starts[p]..starts[p+1]), in growing order.
struct gradring_unique {
  const uint64_t* ids;
  uint64_t count;
  uint64_t* unique_ids;    // Room for count.
  uint32_t* starts;        // count + 1.
  uint32_t* positions;     // count.
  uint32_t* places;        // count: of each position the place of its id. May be null.
  uint32_t* unique_count;  // One word.
  void* scratch;           // unique_scratch_bytes(count).
};

// sums[p] = the sum of `rows` over the positions of place p, in their order, each addition rounded
// to float32. What occurs once is copied.
struct gradring_segment_sum {
  const void* rows;  // One for each position.
  int32_t dtype;     // Float32, float16 or bfloat16, by the values of base/types.h.
  uint32_t dim;
  const uint32_t* starts;
  const uint32_t* positions;
  const uint32_t* unique_count;  // May be null: then it is `most`.
  uint64_t most;
  float* sums;
};

// Which rows of a table; the table's rows are `stride` elements apart.
struct gradring_row_slots {
  const void* slots;
  int32_t slot_bytes;  // 4 or 8: unsigned numbers.
  uint32_t dim;
  uint64_t rows;  // Of the table. A slot from there on is missing.
  uint64_t most;
  const uint32_t* count_at;  // May be null: then it is `most`.
  uint64_t* missing;         // Grows by the number of slots that are missing. May be null.
};

// out[i] = table[slots[i]], cast; zeros where the slot is missing.
struct gradring_gather_rows {
  struct gradring_row_slots where;
  const void* table;
  int32_t table_dtype;  // Float32, float16 or bfloat16, as out_dtype.
  int32_t out_dtype;
  uint64_t stride;
  void* out;  // Rows one after the other.
};

// table[slots[i]] = rows[i], float32. No slot may be there twice.
struct gradring_put_rows {
  struct gradring_row_slots where;
  float* table;
  uint64_t stride;
  const float* rows;
};

// What a step takes from its rule: kernels::Scalars<float> by another name.
struct gradring_rule {
  int32_t kind;  // kernels::RuleKind: sum, sgd, adagrad, adam, adamw or sparse_adam.
  int32_t is_nesterov;
  double lr_decay;
  double weight_decay;
  float clip_value;
  float momentum;
  float undampened;
  float mean_weight;
  float square_decay;
  float square_weight;
  float eps;
};

// What changes from one step to the next.
struct gradring_rule_step {
  double lr;
  uint64_t step;  // From 1. Of all rows, unless they count their own.
};

// What Adam divides by, worked out on the host: kernels::bias_corrections.
struct gradring_bias_correction {
  double mean;
  double root_of_square;
};

// One step of the rows in `where.slots`, none of which may be there twice: kernels::update_row on
// each. A row whose gradient is not finite stays as it is.
struct gradring_apply_rows {
  struct gradring_row_slots where;
  struct gradring_rule rule;
  struct gradring_rule_step step;
  const struct gradring_rule_step* step_at;  // Read in stream order instead; may be null.
  // Of the steps 1, 2, ...; what comes later is as the last. Only Adam's need them.
  const struct gradring_bias_correction* corrections;
  uint64_t correction_count;
  const float* gradients;  // Rows one after the other.
  float* weights;
  uint64_t stride;
  // As the rule's state_fields; their rows are `field_stride` elements apart. Null after the last.
  float* fields[GRADRING_RULE_FIELDS];
  uint64_t field_stride;
  uint32_t* steps;    // Of each row of the table: counted here, and used. May be null.
  uint64_t* refused;  // Grows by the number of rows that stay as they are. May be null.
};

struct gradring_row_kernels {
  uint32_t bytes;  // sizeof of the plugin's own table.
  uint64_t (*unique_scratch_bytes)(uint64_t count);
  int (*unique)(int device, const struct gradring_unique* call, gradring_stream stream);
  int (*segment_sum)(int device, const struct gradring_segment_sum* call, gradring_stream stream);
  int (*gather_rows)(int device, const struct gradring_gather_rows* call, gradring_stream stream);
  int (*put_rows)(int device, const struct gradring_put_rows* call, gradring_stream stream);
  int (*apply_rows)(int device, const struct gradring_apply_rows* call, gradring_stream stream);
  // Brings the kernels to the device, which a first launch would do, within a capture too late.
  int (*preload)(int device);
};
}
