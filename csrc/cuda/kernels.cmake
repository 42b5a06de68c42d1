# The kernels and their launchers: what the plugin compiles with nvcc, and the tests with the C++ compiler.
set(gradring_cuda_kernels
)
list(TRANSFORM gradring_cuda_kernels PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
