// The function table of the GPU plugin (libgradring_cuda.so): C types only, so that the plugin and
// the core need not come from one compiler. The plugin for CUDA lives in csrc/cuda; the tests build
// one whose device is host memory. Every entry is callable from any thread, returns 0 or an error
// code that error_text explains, and never throws. A device is set per call, not per thread: the
// entries that take one leave the calling thread's current device as it was.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpu/codec_calls.h"
#include "gpu/row_calls.h"
#include "gpu/stream_calls.h"

extern "C" {

typedef void* gradring_stream;  // cudaStream_t. 1: legacy default, 2: per-thread default.
typedef void* gradring_event;   // cudaEvent_t.

enum { GRADRING_GPU_ABI = 2 };

// What an entry returns where it is not one of the driver's own codes (which are positive).
enum {
  GRADRING_GPU_OK = 0,
  GRADRING_GPU_NOT_READY = -1,  // Of event_query and stream_query: still running.
  GRADRING_GPU_BAD_CALL = -2,   // An argument no caller of ours passes.
};

enum gradring_memory_kind {
  GRADRING_MEMORY_HOST = 0,  // Pageable, unknown to the driver.
  GRADRING_MEMORY_PINNED = 1,
  GRADRING_MEMORY_DEVICE = 2,
  GRADRING_MEMORY_MANAGED = 3,
};

struct gradring_device_facts {
  char name[128];
  char bus_id[32];
  int32_t major, minor;  // Compute capability.
  int32_t multiprocessors;
  int32_t can_wait_on_memory;  // stream_wait_value is there.
  uint64_t memory_bytes;
  uint64_t l2_bytes;
};

struct gradring_gpu_runtime {
  // Without a driver: the code that says so; *count 0.
  int (*device_count)(int* count);
  int (*driver_version)(int* version);  // 13000 for 13.0; 0: none.
  int (*device_facts)(int device, struct gradring_device_facts* facts);
  int (*pointer_facts)(const void* pointer, int* kind, int* device);

  int (*alloc)(int device, size_t bytes, void** pointer);
  int (*free)(int device, void* pointer);
  int (*pinned_alloc)(size_t bytes, void** pointer);
  int (*pinned_free)(void* pointer);
  int (*pin)(void* pointer, size_t bytes);  // cudaHostRegister, portable.
  int (*unpin)(void* pointer);

  int (*stream_create)(int device, int is_urgent, gradring_stream* stream);  // Non-blocking.
  int (*stream_destroy)(int device, gradring_stream stream);
  int (*stream_query)(int device, gradring_stream stream);
  int (*stream_synchronize)(int device, gradring_stream stream);
  int (*event_create)(int device, int is_timed, gradring_event* event);
  int (*event_destroy)(int device, gradring_event event);
  int (*event_record)(int device, gradring_event event, gradring_stream stream);
  int (*event_query)(gradring_event event);
  int (*event_synchronize)(gradring_event event);
  int (*event_elapsed_ms)(gradring_event from, gradring_event to, float* ms);
  int (*stream_wait_event)(int device, gradring_stream stream, gradring_event event);
  // The stream goes on once *word (pinned) >= value, as unsigned 32-bit numbers that wrap; writes
  // `value` in stream order. BAD_CALL where facts.can_wait_on_memory is 0.
  int (*stream_wait_value)(int device, gradring_stream stream, uint32_t* word, uint32_t value);
  int (*stream_write_value)(int device, gradring_stream stream, uint32_t* word, uint32_t value);

  // Kinds are found from the pointers.
  int (*copy)(int device, void* to, const void* from, size_t bytes, gradring_stream stream);
  int (*fill)(int device, void* to, int value, size_t bytes, gradring_stream stream);

  // Makes `device` the calling thread's own, and leaves it so: for libraries that go by that
  // (NCCL).
  int (*use_device)(int device);

  // 1 while a CUDA graph is captured from the stream, or from another that would wait for it: what
  // is put into it would go into the graph, or spoil it.
  int (*stream_is_capturing)(int device, gradring_stream stream, int* is_capturing);
};

struct gradring_gpu_api {
  uint32_t abi;       // GRADRING_GPU_ABI; another one is refused.
  uint32_t bytes;     // sizeof of the plugin's own table.
  const char* build;  // "CUDA 13.0.88 for sm_80, sm_90, sm_100 and PTX", or "emulated on the host".
  const char* (*error_text)(int code);
  const struct gradring_gpu_runtime* runtime;
  const struct gradring_stream_kernels* streaming;
  const struct gradring_codec_kernels* codecs;
  const struct gradring_row_kernels* rows;
};

// What the plugin exports.
typedef const struct gradring_gpu_api* (*gradring_gpu_get_api_fn)(void);
}
