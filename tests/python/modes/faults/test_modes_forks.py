"""A forked child that goes on with its parent's optimizer is told so, and at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODES = ["gr.Async()", "gr.Geo(k_steps=2)", "gr.BoundedStaleness(1)", 'gr.Sync(via="ps")']

# The child says what each call of it raised; afterwards the parent still trains.
TRAIN = """
import os, sys
import numpy as np, gradring as gr
values, ones = np.zeros(1, np.float32), np.ones(1, np.float32)
optimizer = gr.distributed([values], gr.optim.SGD(lr=1.0), {mode})
for _ in range(3):
    optimizer.step([-ones])
child = os.fork()
if child == 0:
    for call in (lambda: optimizer.step([-ones]), optimizer.flush, optimizer.close):
        try:
            call()
            print("nothing raised")
        except gr.Error as error:
            is_clear = "belongs to the parent" in str(error)
            print(type(error).__name__, "parent" if is_clear else error)
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
optimizer.step([-ones])
optimizer.flush()
print(values[0])
optimizer.close()
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("mode", MODES)
def test_a_forked_child_is_told_that_the_optimizer_is_its_parents(mode: str) -> None:
    # Since 3.12 Python warns of every fork() of a process that has threads.
    done = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c",
         TRAIN.format(mode=mode)], capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["Closed parent"] * 3 + ["4.0"], done.stderr
    assert not done.stderr
