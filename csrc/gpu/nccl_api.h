// What gradring calls of NCCL, declared here so that neither its headers nor CUDA's are needed to
// build: the library is opened at run time. Numbers and layouts are those of nccl.h since 2.18,
// which tests/python/gpu/test_nccl_header.py compares with a real one where it finds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace gradring::gpu::nccl {

inline constexpr int kOldestVersion = 21800;  // ncclCommSplit.

struct CommState;
using Comm = CommState*;
using Stream = void*;  // cudaStream_t.

struct UniqueId {
  char bytes[128];
};

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum class RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

enum class Residence : int { kDevice = 0, kHostImmediate = 1 };

// ncclConfig_t as 2.18 had it. The library reads `size` bytes of it and fills in what came later.
struct Config {
  static constexpr int kUnset = std::numeric_limits<int>::min();
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kOldestVersion;
  int blocking = 0;
  int cga_cluster_size = kUnset;
  int min_ctas = kUnset;
  int max_ctas = kUnset;
  const char* net_name = nullptr;
  int split_share = kUnset;
};

// Everything we call: name in the library without "nccl", then result and parameters.
#define GRADRING_NCCL_FUNCTIONS(X)                                                         \
  X(GetVersion, Result, int*)                                                              \
  X(GetUniqueId, Result, UniqueId*)                                                        \
  X(CommInitRankConfig, Result, Comm*, int, UniqueId, int, Config*)                        \
  X(CommSplit, Result, Comm, int, int, Comm*, Config*)                                     \
  X(CommFinalize, Result, Comm)                                                            \
  X(CommDestroy, Result, Comm)                                                             \
  X(CommAbort, Result, Comm)                                                               \
  X(CommGetAsyncError, Result, Comm, Result*)                                              \
  X(GetErrorString, const char*, Result)                                                   \
  X(GetLastError, const char*, Comm)                                                       \
  X(RedOpCreatePreMulSum, Result, RedOp*, void*, DataType, Residence, Comm)                \
  X(RedOpDestroy, Result, RedOp, Comm)                                                     \
  X(AllReduce, Result, const void*, void*, std::size_t, DataType, RedOp, Comm, Stream)     \
  X(ReduceScatter, Result, const void*, void*, std::size_t, DataType, RedOp, Comm, Stream) \
  X(AllGather, Result, const void*, void*, std::size_t, DataType, Comm, Stream)            \
  X(Broadcast, Result, const void*, void*, std::size_t, DataType, int, Comm, Stream)       \
  X(Reduce, Result, const void*, void*, std::size_t, DataType, RedOp, int, Comm, Stream)   \
  X(Send, Result, const void*, std::size_t, DataType, int, Comm, Stream)                   \
  X(Recv, Result, void*, std::size_t, DataType, int, Comm, Stream)                         \
  X(GroupStart, Result)                                                                    \
  X(GroupEnd, Result)

struct Functions {
#define GRADRING_NCCL_MEMBER(name, result, ...) result (*name)(__VA_ARGS__) = nullptr;
  GRADRING_NCCL_FUNCTIONS(GRADRING_NCCL_MEMBER)
#undef GRADRING_NCCL_MEMBER
};

}  // namespace gradring::gpu::nccl
