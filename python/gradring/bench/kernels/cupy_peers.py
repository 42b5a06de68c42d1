"""What CuPy does in the place of some kernels; nothing is imported where it is missing."""

from __future__ import annotations

import importlib
from typing import Any

from gradring.bench.kernels.measure import Bench, Case, Launch
from gradring.bench.kernels.options import Options
from gradring.bench.kernels.streaming import tensor_counts


def add_to(cases: list[Case], bench: Bench, options: Options) -> str | None:
    """Put CuPy's ways beside the cases; returns why there are none, or ``None``."""
    try:
        cupy: Any = importlib.import_module("cupy")
    except ImportError:
        return "CuPy is not installed"
    if not cupy.cuda.is_available():
        return "CuPy sees no CUDA device"
    n, k = options.elements, options.sources
    counts = tensor_counts(options.tensors, n)
    with cupy.cuda.Device(bench.device):
        tensors = [cupy.full(count, 0.01, cupy.float32) for count in counts]
        sources = [cupy.full(n, 0.01, cupy.float16) for _ in range(k)]
        names = [f"s{index}" for index in range(k)]
        total = cupy.ElementwiseKernel(
            ", ".join(f"float16 {name}" for name in names),
            "float32 out",
            f"out = ({' + '.join(f'(float){name}' for name in names)}) / {k}.f",
            "gradring_bench_total",
        )
        calls = {
            "pack: ": {"CuPy concatenate, multiply, astype (f16)": lambda: (
                cupy.concatenate(tensors) * cupy.float32(0.125)).astype(cupy.float16)},
            "reduce: ": {"CuPy ElementwiseKernel (f16)": lambda: total(*sources)},
        }  # fmt: skip
    for case in cases:
        for name, peers in calls.items():
            if case.name.startswith(name):
                for label, call in peers.items():
                    case.peers[label] = _on(cupy, bench, call)
    return None


def _on(cupy: Any, bench: Bench, call: Any) -> Launch:
    def launch(_: int) -> None:
        with cupy.cuda.Device(bench.device), cupy.cuda.ExternalStream(bench.stream.ptr):
            call()

    return launch
