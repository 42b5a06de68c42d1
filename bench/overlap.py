"""Draws what runs when in one training step: backward on one thread, buckets on the other.

    GRADRING_RECORD=/tmp/overlap gradring run -n 2 bench/overlap.py docs/overlap.png

The times of the operations are those of the flight recorder. It writes them when something fails,
so the last call is a wrong one on purpose. Needs matplotlib: ``pip install 'gradring[bench]'``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import gradring as gr
import gradring.torch as gt

STEPS = 12


def main() -> None:
    """Train some steps, and let rank 0 draw the last."""
    if "GRADRING_RECORD" not in os.environ or len(sys.argv) != 2:
        sys.exit(
            "say where operations are recorded, and which picture to draw: "
            "GRADRING_RECORD=/tmp/overlap gradring run -n 2 bench/overlap.py overlap.png"
        )
    torch.set_num_threads(1)
    comm = gr.init()
    model = nn.Sequential(
        *[layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gt.distributed(optimizer, model=model)
    x = torch.randn(64, 1024)
    spans: dict[str, Any] = {}
    for _ in range(STEPS):
        spans = {"forward": time.perf_counter_ns()}
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        spans["backward"] = time.perf_counter_ns()
        loss.backward()
        spans["step"] = time.perf_counter_ns()
        optimizer.step()
        spans["end"] = time.perf_counter_ns()
    with contextlib.suppress(gr.Mismatch):
        comm.all_reduce(np.zeros(1 + comm.rank))
    if comm.rank == 0:
        draw(spans, operations(spans), Path(sys.argv[1]))


def operations(spans: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the operations of the last step from this rank's record."""
    folder = Path(os.environ["GRADRING_RECORD"])
    path = folder / "rank-0.json"
    deadline = time.monotonic() + 10
    while not path.exists():  # A thread of its own writes it.
        if time.monotonic() > deadline:
            sys.exit(f"no record in {folder}")
        time.sleep(0.05)
    record = json.loads(path.read_text())
    found = [op for group in record["communicators"] for op in group["operations"]]
    within = [op for op in found if op.get("end", 0) and op["count"] > 1]
    return [op for op in within if spans["forward"] <= op["begin"] <= spans["end"]]


def draw(spans: dict[str, Any], found: list[dict[str, Any]], path: Path) -> None:
    """Draw two rows of bars over milliseconds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    def bar(row: int, begin: int, end: int, color: str, text: str) -> None:
        left, width = (begin - spans["forward"]) / 1e6, (end - begin) / 1e6
        axes.barh(row, width, left=left, color=color, edgecolor="white", height=0.7)
        axes.text(left + width / 2, row, text, ha="center", va="center", fontsize=7)

    figure, axes = plt.subplots(figsize=(9, 1.9), layout="constrained")
    bar(1, spans["forward"], spans["backward"], "#cfd8dc", "forward")
    bar(1, spans["backward"], spans["step"], "#90caf9", "backward")
    bar(1, spans["step"], spans["end"], "#a5d6a7", "step")
    for op in found:
        mebibytes = op["count"] * 4 >> 20
        bar(0, op["begin"], op["end"], "#ffcc80", f"{mebibytes} MiB" if mebibytes else "")
    axes.set_yticks([1, 0], ["caller", "progress thread"])
    axes.set_xlabel("ms")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
