// Of CUDA's driver API what csrc/cuda/runtime.cc uses: names and numbers are its.
// Found before CUDA's own by gradring_cuda_entries alone.
#pragma once

#include <cstdint>

struct CUctx_st;
struct CUstream_st;
using CUcontext = CUctx_st*;
using CUstream = CUstream_st*;
using CUdeviceptr = unsigned long long;
using cuuint32_t = std::uint32_t;

enum CUresult { CUDA_SUCCESS = 0 };
enum { CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WRITE_VALUE_DEFAULT = 0 };
