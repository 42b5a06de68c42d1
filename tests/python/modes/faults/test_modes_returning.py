"""A worker that was killed comes back while the others go on: Async, BoundedStaleness, Geo."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher_runs import Start, launching

MODES = ["gr.Async()", "gr.BoundedStaleness(50)", "gr.Geo(k_steps=2)"]

# Rank 1 runs its part twice, in processes of its own: the first one dies after three steps. Rank 0
# trains before and after that, and leaves when the second one has come through.
TRAIN = """
import os, signal, subprocess, sys

rank, life = int(os.environ["GRADRING_RANK"]), sys.argv[1:]
if rank == 1 and not life:
    ended = [subprocess.run([sys.executable, __file__, n], timeout=60).returncode for n in "01"]
    open("gate", "w").write("through")
    print("lives ended with", *ended)
    sys.exit()

import numpy as np
{imports}
{make}
for _ in range(3):
    step()
if life == ["0"]:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    open("gate").read()
    step()
optimizer.close()
print("rank", rank, "is through")
"""

NUMPY = {
    "imports": "import gradring as gr",
    "make": """
ones = np.ones(4, np.float32)
optimizer = gr.distributed([ones.copy()], gr.optim.SGD(lr=0.1), {mode})
def step():
    optimizer.step([ones])
""",
}
TORCH = {
    "imports": "import torch, gradring as gr, gradring.torch",
    "make": """
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = gradring.torch.distributed(optimizer, {mode}, model=model)
def step():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
""",
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with launching(tmp_path) as start:
        yield start


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("mode", "library"),
    [
        *((mode, NUMPY) for mode in MODES),
        (MODES[0], TORCH),
        *(pytest.param(mode, TORCH, marks=pytest.mark.slow) for mode in MODES[1:]),
    ],
    ids=lambda value: value if isinstance(value, str) else "torch" if value is TORCH else "numpy",
)
def test_a_killed_worker_comes_back_without_joining_the_ranks(
    start: Start, tmp_path: Path, mode: str, library: dict[str, str]
) -> None:
    if library is TORCH:
        pytest.importorskip("torch")
    os.mkfifo(tmp_path / "gate")
    program = TRAIN.format(imports=library["imports"], make=library["make"].format(mode=mode))
    code, lines, err = start(program, "-n", "2", "--servers", "1").finish()
    assert code == 0, err
    assert "[1] lives ended with -9 0" in lines, err
    assert {"[0] rank 0 is through", "[1] rank 1 is through"} <= set(lines)
