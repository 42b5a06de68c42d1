# The kernels and their launchers: what the plugin compiles with nvcc, and the tests with the C++ compiler.
set(gradring_cuda_kernels
  apply.cu
  check.cu
  pack.cu
  quantise.cu
  reduce.cu
  rows.cu
  sparsify.cu
  step.cu
  stream_table.cu
  unique.cu
)
list(TRANSFORM gradring_cuda_kernels PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
