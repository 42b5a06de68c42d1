# The kernels and their launchers: what the plugin compiles with nvcc, and the tests with the C++ compiler.
set(gradring_cuda_kernels
  check.cu
  pack.cu
  reduce.cu
  step.cu
  stream_table.cu
)
list(TRANSFORM gradring_cuda_kernels PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
