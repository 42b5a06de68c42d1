"""Training steps per second beside PyTorch's DistributedDataParallel on Gloo.

    gradring run -n 2 bench/torch_steps.py --json bench/results/torch-steps-2.json

Every rank is one process that holds both: a model under DDP over Gloo, and the same model under
`gradring.torch.distributed`. They take turns, block of steps by block of steps (A B B A ...), so
that whatever else the machine does hits both. Same initial values, same batches, same optimizer,
one compute thread a rank; with `--device cuda` ranks share the GPUs that there are. Ratios are
taken round by round; after the rounds the two models must agree, or the run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from compare import records
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

import gradring as gr
import gradring.torch as gt
from gradring.bench.report import machine_facts

Step = Callable[[], None]


def mlp(width: int, depth: int) -> nn.Module:
    """Equal layers: every parameter is used once for each example, so little work per byte."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def cnn(channels: int, depth: int) -> nn.Module:
    """3x3 convolutions in `depth` stages, each with half the resolution and twice the channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1), nn.ReLU()]
        channels *= 2
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


@dataclass(frozen=True)
class Case:
    """One model and how many examples each rank computes in a step."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int


CASES = [
    Case("mlp-1M", lambda: mlp(512, 4), (512,), 16),
    Case("mlp-5M", lambda: mlp(1024, 5), (1024,), 16),
    Case("mlp-25M", lambda: mlp(2048, 6), (2048,), 4),
    Case("mlp-25M", lambda: mlp(2048, 6), (2048,), 64),
    Case("cnn-1M", lambda: cnn(32, 3), (3, 16, 16), 4),
    Case("cnn-5M", lambda: cnn(64, 3), (3, 16, 16), 4),
    Case("cnn-19M", lambda: cnn(64, 4), (3, 16, 16), 1),
    Case("cnn-19M", lambda: cnn(64, 4), (3, 16, 16), 8),
]


@dataclass
class Result:
    """What came of a case: seconds per step of every round."""

    case: str
    batch: int
    parameters: int
    ranks: int
    alone_s: list[float] = field(default_factory=list)
    ddp_s: list[float] = field(default_factory=list)
    gradring_s: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """How many times as long DDP took, by rounds."""
        return [ddp / ours for ddp, ours in zip(self.ddp_s, self.gradring_s, strict=True)]


def main() -> None:
    """Measure every case and let rank 0 report."""
    options = parse()
    torch.set_num_threads(1)
    comm = gr.init()
    if options.device == "cuda":
        torch.cuda.set_device(comm.local_rank % torch.cuda.device_count())
        torch.use_deterministic_algorithms(mode=True, warn_only=True)  # The models must agree.
        torch.backends.cudnn.allow_tf32 = False
    join_gloo(comm)
    cases = [case for case in CASES if options.only is None or case.name in options.only]
    results = [measure(case, comm, options) for case in cases]
    if comm.rank == 0:
        print(table(results))
        if options.json is not None:
            options.json.write_text(json.dumps(document(results, options), indent=1) + "\n")
    torch.distributed.destroy_process_group()
    comm.close()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one block of steps")
    names = sorted({case.name for case in CASES})
    parser.add_argument("--only", nargs="*", choices=names, help="these cases")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bucket-mb", type=float, default=None, help="ours; default: its own")
    return parser.parse_args()


def join_gloo(comm: Any) -> None:
    """Make PyTorch's process group of the same ranks."""
    path = bytearray(256)
    if comm.rank == 0:
        name = tempfile.mktemp(prefix="torch-steps-").encode()
        path[: len(name)] = name
    comm.broadcast(path)
    store = f"file://{bytes(path).rstrip(bytes(1)).decode()}"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=store, rank=comm.rank, world_size=comm.world_size
    )


def measure(case: Case, comm: Any, options: argparse.Namespace) -> Result:
    """Let both take turns on one case."""
    torch.manual_seed(0)
    theirs, ours, alone = (case.make().to(options.device) for _ in range(3))
    for model in (ours, alone):
        model.load_state_dict(theirs.state_dict())
    generator = torch.Generator(options.device).manual_seed(1 + comm.rank)
    drawn = {"generator": generator, "device": options.device}
    x = torch.randn(case.batch, *case.shape, **drawn)
    y = torch.randint(10, (case.batch,), **drawn)

    ddp = DistributedDataParallel(theirs, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.01)
    extra = {} if options.bucket_mb is None else {"bucket_bytes": int(options.bucket_mb * 2**20)}
    gt.distributed(optimizer, comm=comm, model=ours, **extra)
    steps: dict[str, Step] = {
        "ddp": stepper(ddp, torch.optim.SGD(theirs.parameters(), lr=0.01), x, y),
        "gradring": stepper(ours, optimizer, x, y),
        "alone": stepper(alone, torch.optim.SGD(alone.parameters(), lr=0.01), x, y),
    }
    count = 3
    slowest = max(seconds_of(step, 3, comm) for step in steps.values())
    slowest = max(seconds_of(step, 2, comm) for step in steps.values())
    count = max(2, min(500, round(options.seconds / slowest)))
    agree(theirs, ours, case)

    parameters = sum(param.numel() for param in ours.parameters())
    result = Result(case.name, case.batch, parameters, comm.world_size)
    for number in range(options.rounds):
        order = ["ddp", "gradring"] if number % 2 == 0 else ["gradring", "ddp"]
        for name in [*order, "alone"]:
            getattr(result, f"{name}_s").append(seconds_of(steps[name], count, comm))
    agree(theirs, ours, case)
    return result


def stepper(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> Step:
    """Return one training step, the same for all."""

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def seconds_of(step: Step, count: int, comm: Any) -> float:
    """Return the seconds of a step, on the rank that took longest."""
    finish()
    comm.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    finish()
    seconds = torch.tensor([(time.perf_counter() - begin) / count])
    return float(comm.all_reduce(seconds, "max"))


def finish() -> None:
    """Wait for what is on the device."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def agree(theirs: nn.Module, ours: nn.Module, case: Case) -> None:
    """Fail unless both have trained alike."""
    for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
        if not torch.allclose(a, b, rtol=1e-3, atol=1e-5):
            sys.exit(f"{case.name}: the two models differ by {float((a - b).abs().max())}")


def table(results: list[Result]) -> str:
    """Return the figures as a Markdown table."""
    columns = (
        "model", "parameters", "batch a rank", "DDP on Gloo, steps/s", "gradring, steps/s",
        "ratio", "without talking, steps/s",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---|---:|---:|---:|---:|---:|---:|"]
    for result in results:
        ddp, ours, alone = (
            1 / statistics.median(seconds)
            for seconds in (result.ddp_s, result.gradring_s, result.alone_s)
        )
        ratios = sorted(result.ratios)
        lines.append(
            f"| {result.case} | {result.parameters / 1e6:.1f} M | {result.batch} | {ddp:.1f} |"
            f" {ours:.1f} | {statistics.median(ratios):.2f}x ({ratios[0]:.2f} to"
            f" {ratios[-1]:.2f}) | {alone:.1f} |"
        )
    return "\n".join(lines)


def document(results: list[Result], options: argparse.Namespace) -> dict[str, Any]:
    """Return what goes into the JSON file."""
    words = [word for word in sys.argv[1:] if not word.endswith(".json") and word != "--json"]
    ranks = str(results[0].ranks)
    command = shlex.join(["gradring", "run", "-n", ranks, "bench/torch_steps.py", *words])
    return {
        "measured": records.stamp() | {"command": command},
        "machine": machine_facts(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu",
        "rounds": options.rounds,
        "results": [{**asdict(result), "ratios": result.ratios} for result in results],
    }


if __name__ == "__main__":
    main()
