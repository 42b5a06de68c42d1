"""What the torch.distributed examples share: joining, QuickDraw's doodles, and a small network.

The doodles are quickdraw15.npz (15 classes of 28 x 28 drawings; Google, CC BY 4.0), in
$GRADRING_DATA, else in ../shared/data beside the repository, in a folder quickdraw or right there.
Where there is none, scikit-learn's bundled digits are taken.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from datasets import load_digits
from torch import Tensor, nn

import gradring.torch  # noqa: F401 - registers the backend


def join() -> tuple[int, int]:
    """Join torchrun's job, or be a world of one; this rank and the number of ranks."""
    if "RANK" not in os.environ and int(os.environ.get("GRADRING_WORLD_SIZE") or 1) > 1:
        raise SystemExit("gradring run sets no variables of torch's: start this with torchrun")
    if "RANK" in os.environ:
        dist.init_process_group("gradring")
    else:
        dist.init_process_group("gradring", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()


def load(images: int, split: str = "train") -> tuple[Tensor, Tensor, int]:
    """The first images of a split, float32 (n, 1, side, side) in 0..1; labels; how many classes."""
    given = os.environ.get("GRADRING_DATA")
    root = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    for file in (root / "quickdraw" / "quickdraw15.npz", root / "quickdraw15.npz"):
        if file.exists():
            with np.load(file) as data:
                x, y = data[f"x_{split}"][:images], data[f"y_{split}"][:images]
            return torch.tensor(x[:, None] / np.float32(255)), torch.tensor(y.astype(int)), 15
    if split == "train" and dist.get_rank() == 0:
        print(f"no quickdraw15.npz in {root / 'quickdraw'}, {root}: using scikit-learn's digits")
    digits = load_digits()
    part = slice(0, 1400) if split == "train" else slice(1400, None)
    x = digits.images[part][:images, None].astype(np.float32) / 16
    return torch.tensor(x), torch.tensor(digits.target[part][:images].astype(int)), 10


def network(side: int, classes: int) -> nn.Sequential:
    """Two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 64), nn.ReLU()),
        nn.Linear(64, classes),
    )
