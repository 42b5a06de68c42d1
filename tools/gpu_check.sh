#!/usr/bin/env bash
# On a machine with a GPU and without network: builds, tests, sanitizes and measures.
#   OUT=results tools/gpu_check.sh          what it finds goes into $OUT (default: build/gpu_check)
# Needs nvcc, and Python with numpy, pybind11, scikit-build-core, cmake, ninja, pytest, pytest-timeout, hypothesis and ml_dtypes;
# torch, CuPy and NCCL are used where they are. Every part has a time limit, together 8 minutes; one that fails does not stop the others. The exit
# code is the number of parts that failed, and $OUT/summary.txt says which.
set -uo pipefail
cd "$(dirname "$0")/.."

readonly python="${PYTHON:-python3}"
readonly architectures="${GRADRING_CHECK_ARCHITECTURES:-90-real}"
OUT="${OUT:-build/gpu_check}"
mkdir -p "$OUT"
OUT="$(cd "$OUT" && pwd)"
site="$(mktemp -d)"
trap 'rm -rf "$site"' EXIT
export PYTHONUNBUFFERED=1 CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
export CUDACXX="${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}"

failed=0
began=$SECONDS

# part NAME SECONDS COMMAND...: runs it, its output into $OUT/NAME.log.
part() {
  local name="$1" limit="$2" start=$SECONDS status
  shift 2
  echo "== $name"
  timeout --kill-after=10 "$limit" "$@" >"$OUT/$name.log" 2>&1
  status=$?
  tail -n 4 "$OUT/$name.log" | sed 's/^/   /'
  if [ "$status" -ne 0 ]; then
    failed=$((failed + 1))
  fi
  echo "$name: exit $status after $((SECONDS - start)) s" | tee -a "$OUT/summary.txt"
}

facts() {
  date -u +%FT%TZ
  git rev-parse HEAD 2>/dev/null
  nvidia-smi -L
  nvidia-smi --query-gpu=driver_version,memory.total,clocks.max.sm,clocks.max.mem,pcie.link.gen.current,pcie.link.width.current --format=csv
  "$CUDACXX" --version | tail -n 2
  "$python" -m pip list 2>/dev/null | grep -iE '^(torch|triton|cupy|nvidia-nccl|numpy) ' || true
  grep -m 1 'model name' /proc/cpuinfo
  nproc
}

build() {
  "$python" -m pip install -q --no-index --no-build-isolation --no-deps --no-compile --target "$site" . \
    -C cmake.define.GRADRING_CUDA=ON -C "cmake.define.CMAKE_CUDA_ARCHITECTURES=$architectures" -C build-dir=build/gpu
}

# The sanitizer follows children only where it is told to, so each case is a process of its own under it.
sanitize() {
  local tool="$1" sanitizer
  sanitizer="$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)"
  if [ -z "$sanitizer" ]; then
    echo "compute-sanitizer was not found: nothing was checked"
    return 1
  fi
  "$sanitizer" --tool "$tool" --error-exitcode 9 "$python" -m gradring bench kernels \
    --size 1M --tensors 37 --rows 1000 --dim 20 --sources 3 --rounds 5 --no-peers
}

# No timing comes from this: two processes take turns on one GPU.
nccl_two_ranks() {
  local pids=() status=0
  local port=$((20000 + RANDOM % 20000))
  for rank in 0 1; do
    NCCL_HOSTID="rank$rank" NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_IB_DISABLE=1 \
      NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=2 NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_DEBUG=WARN \
      GRADRING_RANK=$rank GRADRING_WORLD_SIZE=2 GRADRING_RENDEZVOUS="127.0.0.1:$port" GRADRING_SECRET=gpu-check-of-one-machine \
      "$python" tests/gpu/nccl_rank.py &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || status=1
  done
  return "$status"
}

rm -f "$OUT/summary.txt"
part facts 10 facts
part build 120 build
if [ "$failed" -gt 0 ] && [ ! -d "$site/gradring" ]; then
  echo "the build failed: $OUT/build.log" >&2
  exit 1
fi
export PYTHONPATH="$site"
part info 10 "$python" -m gradring doctor
part tests 90 "$python" -m pytest -q -m gpu --override-ini=timeout=60 tests/python
part memcheck 40 sanitize memcheck
part racecheck 40 sanitize racecheck
part nccl 40 nccl_two_ranks
part kernels 70 "$python" -m gradring bench kernels --size 256M --json "$OUT/kernels.json"
part all_reduce_shm 30 "$python" -m gradring bench all_reduce --device cuda --sizes 1M,16M,64M,256M --transport shm --json "$OUT/all_reduce_shm.json"
part all_reduce_tcp 30 "$python" -m gradring bench all_reduce --device cuda --sizes 1M,16M,64M --transport tcp --json "$OUT/all_reduce_tcp.json"
echo "all: $((SECONDS - began)) s, $failed failed" | tee -a "$OUT/summary.txt"
exit "$failed"
