#!/usr/bin/env bash
# On a machine with a GPU and without network: builds, tests, sanitizes and measures.
#   OUT=results tools/gpu_check.sh [PART...]      what it finds goes into $OUT (default: build/gpu_check); without names all parts
# Needs nvcc, OpenSSL's headers ($OPENSSL_ROOT_DIR can name them), and Python with numpy, pybind11, scikit-build-core, cmake, ninja, pytest, pytest-timeout, hypothesis and ml_dtypes;
# torch, CuPy, JAX, Numba and NCCL are used where they are. What is only right or wrong runs side by side, what is measured alone. Every part
# has a time limit; one that fails does not stop the others. The exit code is the number of parts that failed, and $OUT/summary.txt says which.
#   GRADRING_CHECK_TESTS       the C++ tests' executable, which this machine may lack the means to build
#   GRADRING_EMULATED_PLUGIN   libgradring_emulated.so, likewise
#   GRADRING_CHECK_COMMIT      what was built, where git cannot tell
set -uo pipefail
cd "$(dirname "$0")/.."

readonly python="${PYTHON:-python3}"
readonly architectures="${GRADRING_CHECK_ARCHITECTURES:-90-real}"
OUT="${OUT:-build/gpu_check}"
mkdir -p "$OUT"
OUT="$(cd "$OUT" && pwd)"
readonly site="$PWD/build/gpu-site" # Kept, like build/gpu: a second run compiles what has changed.
export PYTHONUNBUFFERED=1 CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
export CUDACXX="${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}"

failed=0
began=$SECONDS
readonly wanted=" $* "

# part NAME SECONDS COMMAND...: runs it, its output into $OUT/NAME.log.
part() {
  local name="$1" limit="$2" start=$SECONDS status
  shift 2
  if [ "$wanted" != "  " ] && [[ "$wanted" != *" $name "* ]]; then
    return 0
  fi
  # A shell of its own has the functions below; timeout knows commands alone.
  timeout --signal=INT --kill-after=20 "$limit" bash -c '"$@"' part "$@" >"$OUT/$name.log" 2>&1
  status=$?
  echo "$name: exit $status after $((SECONDS - start)) s" | tee -a "$OUT/summary.txt"
  tail -n "$([ "$status" -eq 0 ] && echo 3 || echo 25)" "$OUT/$name.log" | cut -c 1-300 | sed 's/^/   /'
  return "$status"
}

measure() {
  part "$@" || failed=$((failed + 1))
}

checks=()
check() {
  part "$@" &
  checks+=($!)
}

end_of_checks() {
  local pid
  for pid in "${checks[@]}"; do
    wait "$pid" || failed=$((failed + 1))
  done
  checks=()
}

facts() {
  date -u +%FT%TZ
  echo "${GRADRING_CHECK_COMMIT:-$(git rev-parse HEAD 2>/dev/null)}"
  nvidia-smi -L
  nvidia-smi --query-gpu=driver_version,memory.total,clocks.max.sm,clocks.max.mem,pcie.link.gen.current,pcie.link.width.current --format=csv
  "$CUDACXX" --version | tail -n 2
  "$python" -m pip list 2>/dev/null | grep -iE '^(torch|triton|cupy|jax|numba|nvidia-nccl|numpy)' || true
  grep -m 1 'model name' /proc/cpuinfo
  nproc
}

build() {
  "$python" -m pip install -q --upgrade --no-index --no-build-isolation --no-deps --no-compile --target "$site" . \
    -C cmake.define.GRADRING_CUDA=ON -C "cmake.define.CMAKE_CUDA_ARCHITECTURES=$architectures" -C build-dir=build/gpu
}

# The sanitizer follows children only where it is told to, so each case is a process of its own under it.
sanitize() {
  local sanitizer
  sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)"
  if [ -z "$sanitizer" ]; then
    echo "compute-sanitizer was not found: nothing was checked"
    return 1
  fi
  "$sanitizer" --tool "$1" --error-exitcode 9 "$python" -m gradring bench kernels \
    --size 1M --tensors 37 --rows 1000 --dim 20 --sources 3 --rounds 5 --no-peers
}

# Those that compare kernels with the CPU's, on the plugin for CUDA.
kernel_tests() {
  if [ -z "${GRADRING_CHECK_TESTS:-}" ]; then
    echo "no executable of the C++ tests was given (GRADRING_CHECK_TESTS)"
    return 1
  fi
  GRADRING_TEST_GPU_PLUGIN="$site/gradring/libgradring_cuda.so" "$GRADRING_CHECK_TESTS" --source-file='*gpu_pack_test*,*gpu_reduce_test*,*gpu_step_test*'
}

export -f facts build sanitize kernel_tests
export python architectures site
rm -f "$OUT/summary.txt"
measure facts 20 facts
measure build 200 build
if [ ! -d "$site/gradring" ]; then
  echo "the build failed: $OUT/build.log" >&2
  exit 1
fi
export PYTHONPATH="$site"
check info 30 "$python" -m gradring doctor
check tests 150 env CUDA_MODULE_LOADING=EAGER "$python" -m pytest -v -m gpu --numprocesses 4 --dist loadfile -p no:cacheprovider --override-ini=timeout=60 tests/python
check kernel_tests 120 kernel_tests
check memcheck 120 sanitize memcheck
check racecheck 120 sanitize racecheck
end_of_checks
measure kernels 60 "$python" -m gradring bench kernels --size 256M --no-peers --json "$OUT/kernels.json"
measure all_reduce_shm 60 "$python" -m gradring bench all_reduce --device cuda --compare gloo --sizes 4,64K,1M,16M,64M,256M --transport shm --json "$OUT/all_reduce_shm.json"
measure all_reduce_waits 45 env GRADRING_GPU_STREAM_WAITS=1 "$python" -m gradring bench all_reduce --device cuda --sizes 1M,64M --transport shm --json "$OUT/all_reduce_waits.json"
measure all_reduce_tcp 60 "$python" -m gradring bench all_reduce --device cuda --compare gloo --sizes 1M,16M,64M --transport tcp --json "$OUT/all_reduce_tcp.json"
measure torch_steps 90 "$python" -m gradring run -n 2 "$python" bench/torch_steps.py --device cuda --rounds 5 --seconds 0.3 --json "$OUT/torch_steps.json"
measure kernels_beside 150 "$python" -m gradring bench kernels --size 256M --json "$OUT/kernels_beside.json"
echo "all: $((SECONDS - began)) s, $failed failed" | tee -a "$OUT/summary.txt"
exit "$failed"
