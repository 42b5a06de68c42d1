// Compiled, never run, where a real nccl.h is found: csrc/gpu/nccl_api.h declares the same numbers,
// layouts and calls. tests/python/gpu/test_nccl_header.py does it.
#include "gpu/nccl_api.h"

#include <nccl.h>

#include <cstddef>
#include <tuple>
#include <type_traits>

namespace {

namespace ours = gradring::gpu::nccl;

static_assert(NCCL_VERSION_CODE >= ours::kOldestVersion);
static_assert(NCCL_VERSION(2, 18, 1) > ours::kOldestVersion);

static_assert(sizeof(ncclUniqueId) == sizeof(ours::UniqueId));
static_assert(alignof(ncclUniqueId) == alignof(ours::UniqueId));
static_assert(std::is_trivially_copyable_v<ours::UniqueId>);

template <typename Theirs, typename Ours>
constexpr bool is_same_number(Theirs theirs, Ours own) {
  return sizeof(Theirs) == sizeof(Ours) && static_cast<int>(theirs) == static_cast<int>(own);
}
static_assert(is_same_number(ncclSuccess, ours::Result::kSuccess));
static_assert(is_same_number(ncclUnhandledCudaError, ours::Result::kUnhandledCudaError));
static_assert(is_same_number(ncclSystemError, ours::Result::kSystemError));
static_assert(is_same_number(ncclInternalError, ours::Result::kInternalError));
static_assert(is_same_number(ncclInvalidArgument, ours::Result::kInvalidArgument));
static_assert(is_same_number(ncclInvalidUsage, ours::Result::kInvalidUsage));
static_assert(is_same_number(ncclRemoteError, ours::Result::kRemoteError));
static_assert(is_same_number(ncclInProgress, ours::Result::kInProgress));
static_assert(is_same_number(ncclInt8, ours::DataType::kInt8));
static_assert(is_same_number(ncclUint8, ours::DataType::kUint8));
static_assert(is_same_number(ncclInt32, ours::DataType::kInt32));
static_assert(is_same_number(ncclUint32, ours::DataType::kUint32));
static_assert(is_same_number(ncclInt64, ours::DataType::kInt64));
static_assert(is_same_number(ncclUint64, ours::DataType::kUint64));
static_assert(is_same_number(ncclFloat16, ours::DataType::kFloat16));
static_assert(is_same_number(ncclFloat32, ours::DataType::kFloat32));
static_assert(is_same_number(ncclFloat64, ours::DataType::kFloat64));
static_assert(is_same_number(ncclBfloat16, ours::DataType::kBfloat16));
static_assert(is_same_number(ncclSum, ours::RedOp::kSum));
static_assert(is_same_number(ncclProd, ours::RedOp::kProd));
static_assert(is_same_number(ncclMax, ours::RedOp::kMax));
static_assert(is_same_number(ncclMin, ours::RedOp::kMin));
static_assert(is_same_number(ncclAvg, ours::RedOp::kAvg));
static_assert(is_same_number(ncclScalarDevice, ours::Residence::kDevice));
static_assert(is_same_number(ncclScalarHostImmediate, ours::Residence::kHostImmediate));

#define SAME_PLACE(theirs, own) \
  static_assert(offsetof(ncclConfig_t, theirs) == offsetof(ours::Config, own))
SAME_PLACE(size, size);
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(cgaClusterSize, cga_cluster_size);
SAME_PLACE(minCTAs, min_ctas);
SAME_PLACE(maxCTAs, max_ctas);
SAME_PLACE(netName, net_name);
SAME_PLACE(splitShare, split_share);
static_assert(sizeof(ours::Config) <= sizeof(ncclConfig_t));
static_assert(NCCL_CONFIG_UNDEF_INT == ours::Config::kUnset);
static_assert(NCCL_SPLIT_NOCOLOR == -1);

// Passed the same way: both pointers, or both numbers, or both classes, of one size.
template <typename Theirs, typename Ours>
constexpr bool passes_alike() {
  const auto is_number = []<typename Type>(std::type_identity<Type>) {
    return std::is_integral_v<Type> || std::is_enum_v<Type>;
  };
  return sizeof(Theirs) == sizeof(Ours) && std::is_pointer_v<Theirs> == std::is_pointer_v<Ours> &&
         std::is_class_v<Theirs> == std::is_class_v<Ours> &&
         is_number(std::type_identity<Theirs>{}) == is_number(std::type_identity<Ours>{});
}

template <typename Theirs, typename Ours>
struct Calls;
template <typename Result, typename... Parameters, typename OurResult, typename... OurParameters>
struct Calls<Result (*)(Parameters...), OurResult (*)(OurParameters...)> {
  static constexpr bool are_alike() {
    if constexpr (sizeof...(Parameters) != sizeof...(OurParameters))
      return false;
    else
      return passes_alike<Result, OurResult>() &&
             (passes_alike<Parameters, OurParameters>() && ...);
  }
};

#define SAME_CALL(name, ...) \
  static_assert(Calls<decltype(&nccl##name), decltype(ours::Functions::name)>::are_alike());
GRADRING_NCCL_FUNCTIONS(SAME_CALL)

}  // namespace
