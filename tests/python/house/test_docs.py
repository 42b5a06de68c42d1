"""Every block of Python in the documentation runs, after what its text takes for granted.

Of examples of migrating the lines that stay or are new run as well.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import ROOT

SECONDS = 120

MODEL = """
import numpy, torch
import gradring
import gradring as gr
from torch.nn import functional as F
from torch.utils.data import DataLoader
dataset = [(torch.full((3,), float(n)), torch.tensor(n % 2)) for n in range(8)]
class LeNet(torch.nn.Linear):
    def __init__(self): super().__init__(3, 2)
model = LeNet()
loss_of = F.cross_entropy
"""
GROUP = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as free: port = free.getsockname()[1]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
"""
IDS = """
ids, gradients = numpy.array([3, 2**60, 3]), numpy.ones((3, 16), numpy.float32)
"""
# Two ranks, of which the first has two batches of 64 and the second has one.
TWO_RANKS = """
import os, secrets, socket, sys
dataset = [dataset[n % len(dataset)] for n in range(129)]
door = socket.create_server(("127.0.0.1", 0))
os.environ |= {
    "GRADRING_WORLD_SIZE": "2", "GRADRING_SECRET": secrets.token_hex(32),
    "GRADRING_RENDEZVOUS": f"127.0.0.1:{door.getsockname()[1]}",
}
second = os.fork()
if second: os.environ |= {"GRADRING_RANK": "0", "GRADRING_LISTEN_FD": str(door.fileno())}
else: os.environ["GRADRING_RANK"] = "1"
"""
BOTH_END_WELL = """
comm.close()
if second: sys.exit(os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]))
"""
ROWS = """
batches = [(numpy.arange(6).reshape(2, 3), numpy.zeros(2))] * 2
def forward_and_backward(rows, labels): return 0.0, numpy.ones_like(rows)
"""
DENSE = """
parameter = torch.nn.Parameter(torch.ones(4, 2))
optimizer = torch.optim.Adam([parameter], lr=0.1)
parameter.sum().backward()
optimizer.step()
table = ps.dense_table("d", (4, 2), gr.optim.Adam(lr=0.1))
"""
TWO = """
items = ps.sparse_table("item", 4, gr.optim.SGD(lr=0.1))
user_ids = item_ids = ids = next_ids = numpy.arange(5)
gradients = user_gradients = numpy.ones((5, 16), numpy.float32)
item_gradients = numpy.ones((5, 4), numpy.float32)
"""
STEPS = """
params = [numpy.ones((2, 2), numpy.float32)]
batches = [(numpy.arange(5), numpy.zeros(5))] * 2
def gradients(params, rows, batch): return [numpy.ones((2, 2))], numpy.ones_like(rows)
"""
SLOTS = """
user_ids, item_ids = torch.arange(2), torch.ones(2, 3, dtype=torch.int64)
ids, offsets = torch.arange(4), torch.tensor([0, 1])
"""
PRETRAINED = """
optimizer.close()
gr.ps.current().close()
comm, vectors = gr.init(), numpy.ones((3, 16), numpy.float32)
"""
WRITTEN = """
assert model.users(torch.tensor([2, 3])).mean(1).tolist() == [1, 0]
optimizer.close()
gr.ps.current().close()
weight, new_weight = torch.nn.Parameter(torch.ones(2, 2)), torch.zeros(2, 2)
optimizer = gt.distributed(torch.optim.SGD([weight], lr=0.1), gr.Async())
"""
TABLE = """
ps = gr.ps.connect()
table = ps.sparse_table("user", 2, gr.optim.SGD(lr=1.0))
table.push([1, 2], numpy.ones((2, 2)))
"""

SCALED = """
device, batches, loss_of = "cpu", [torch.ones(4, 3), torch.ones(2, 3)], torch.Tensor.sum
optimizer = gradring.torch.distributed(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
"""

# In place of Ray: actors are objects of this process, their calls threads.
ACTORS = """
import secrets, socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
calls = ThreadPoolExecutor(8)
class Actor:
    def __init__(self, made): self.made = made
    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *of: calls.submit(getattr(self.made, name), *of))
ray = SimpleNamespace(
    remote=lambda made: SimpleNamespace(remote=lambda: Actor(made())),
    get=lambda asked: [one.result() for one in asked] if isinstance(asked, list)
        else asked.result(),
    util=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"),
)
"""

UNLESS_MISSING = """
try: import prometheus_client
except ImportError: raise SystemExit
"""

# In place of TensorBoard.
WRITER = """
import sys, types
class Writer:
    def add_scalar(self, name, value, step):
        assert name.startswith("gradring_") and isinstance(value, float)
sys.modules["torch.utils.tensorboard"] = types.SimpleNamespace(SummaryWriter=Writer)
step = 100
"""

# What each block of a file finds; names go on from block to block.
BEFORE = {
    "README.md": [MODEL, GROUP, "", IDS],
    "docs/parameter_server.md": [MODEL + ROWS, "", "", DENSE, TWO],
    "docs/modes.md": [
        MODEL + STEPS,
        "gr.ps.current().close()",  # Another program.
        "def batches_of(part): return batches\nrun = 1",
        SLOTS,
        PRETRAINED,
        WRITTEN,
    ],
    "docs/checkpoints.md": [MODEL + TABLE, ""],
    "docs/torch.md": [MODEL + GROUP],
    "docs/jax.md": ["", "", ""],
    "docs/keras.md": ["import os\nos.environ['KERAS_BACKEND'] = 'torch'"],
    "docs/training.md": [
        MODEL,
        "optimizer.close(); comm.close()",
        "comm.close()",
        SCALED,
        "comm = gr.init()",
        "",
    ],
    "docs/evaluation.md": ["predictions = [([0, 1, 1], [0.2, 0.7, 0.4])]"],
    "docs/launchers.md": [MODEL + ACTORS],
    "docs/gpu.md": [MODEL + "comm = gr.init()"],
    "docs/migrating.md": [MODEL + GROUP],
    "docs/flight_recorder.md": [MODEL + "x = torch.ones(3)"],
    "docs/metrics.md": [MODEL + UNLESS_MISSING, WRITER],
    "examples/README.md": [MODEL],
}
# What both sides of an example of migrating have: a model, batches, and a loss.
MIGRATED = """
import gradring.torch as gt
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.user = gt.Embedding("user", 16, optimizer=gr.optim.Adagrad(lr=0.05))
        self.score = torch.nn.Linear(16, 1)
    def forward(self, ids): return self.score(self.user(ids)).squeeze(1)
make_model = Model
batches = [torch.arange(8) + n for n in range(4)]
def loss_of(model, batch): return F.binary_cross_entropy_with_logits(model(batch), batch % 2.0)
"""
# Each example, with what it finds, and what has to be so after it.
MIGRATIONS = {
    "from TensorFlow's ParameterServerStrategy": (
        MIGRATED, "assert optimizer.driver.staleness.total > 0; optimizer.close()"
    ),
    "from Paddle's fleet": (
        MIGRATED + "model = make_model()", "assert optimizer.driver.report.exchanges > 0"
    ),
}  # fmt: skip
# What the right sides of the tables of migrating name has to be there.
NAMES = """
import gradring.torch as gt
objects = {
    "gr": gr, "gt": gt, "comm": gr.init(), "ps": gr.ps.connect(),
    "optimizer": gt.distributed(torch.optim.SGD(model.parameters(), lr=0.1), gr.Async()),
    "layer": gt.Embedding("e", 2, optimizer=gr.optim.SGD(lr=0.1)),
}
objects["table"] = objects["ps"].sparse_table("t", 2, gr.optim.SGD(lr=0.1))
objects["w"] = objects["ps"].dense_table("w", 2, gr.optim.SGD(lr=0.1))
objects["work"] = objects["comm"].all_reduce(numpy.ones(2), async_op=True)
missing = []
for name in named:
    first, *parts = name.split(".")
    found = objects[first]
    try:
        for part in parts: found = getattr(found, part)
    except AttributeError: missing.append(name)
assert not missing, missing
"""
NAMES_OF_MIGRATING = "names of ours in docs/migrating.md"
NEEDS_CUDA = {"docs/gpu.md"}
NEEDS = {"docs/jax.md": "jax", "docs/keras.md": "keras"}
TEN_LINES = "README.md's ten lines on two ranks"


def blocks_of(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


def migrations() -> list[str]:
    """What the examples of migrating come to."""
    text = (ROOT / "docs" / "migrating.md").read_text()
    blocks = re.findall(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return ["\n".join(re.findall(r"^[+ ](.*)$", block, re.MULTILINE)) for block in blocks]


def names_of_ours() -> set[str]:
    """What stands right of others' names in the tables of migrating, such as `comm.all_reduce`."""
    lines = (ROOT / "docs" / "migrating.md").read_text().splitlines()
    cells = [line.split(" | ")[-1] for line in lines if line.startswith("| ")]
    code = re.findall(r"`([^`]+)`", " ".join(cells))
    roots = "gr|gt|comm|ps|optimizer|layer|table|w|work"
    pattern = rf"(?<![\w./\"'])(?:{roots})(?:\.[A-Za-z_]\w*)+"
    names = {name for each in code for name in re.findall(pattern, each)}
    return names - {"work.get_future"}  # PyTorch's own.


def test_no_file_with_python_in_it_is_left_out() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
    found = {str(path.relative_to(ROOT)): len(blocks_of(path)) for path in files}
    expected = {path: len(before) for path, before in BEFORE.items()}
    assert {path: count for path, count in found.items() if count} == expected


# One process imports what takes seconds; each file's program is a child of it.
DRIVER = """
import gc, json, os, sys, torch._dynamo, gradring.torch
gc.freeze()  # A child that looks for garbage in it would copy it.
results = {}
for name, program, folder in json.load(sys.stdin):
    child = os.fork()
    if not child:
        os.chdir(folder)
        os.dup2(os.open("errors", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        exec(compile(program, name, "exec"), {"__name__": "__main__"})
        sys.exit()
    results[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
json.dump(results, sys.stdout)
"""


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Each file's exit status and what it printed."""
    left_out = set() if pytest.importorskip("torch").cuda.is_available() else {*NEEDS_CUDA}
    left_out |= {name for name, what in NEEDS.items() if importlib.util.find_spec(what) is None}
    folders = {name: tmp_path_factory.mktemp("docs") for name in BEFORE.keys() - left_out}
    programs = [(name, program_of(name, folder), str(folder)) for name, folder in folders.items()]
    folders[TEN_LINES] = tmp_path_factory.mktemp("docs")
    ten_lines = "\n".join([MODEL, TWO_RANKS, blocks_of(ROOT / "README.md")[0], BOTH_END_WELL])
    programs.append((TEN_LINES, ten_lines, str(folders[TEN_LINES])))
    for (name, (before, after)), lines in zip(MIGRATIONS.items(), migrations(), strict=True):
        folders[name] = tmp_path_factory.mktemp("docs")
        programs.append((name, f"{MODEL}\n{before}\n{lines}\n{after}", str(folders[name])))
    folders[NAMES_OF_MIGRATING] = tmp_path_factory.mktemp("docs")
    names = f"named = {sorted(names_of_ours())}"
    programs.append(
        (NAMES_OF_MIGRATING, f"{MODEL}\n{names}\n{NAMES}", str(folders[NAMES_OF_MIGRATING]))
    )
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], input=json.dumps(programs), capture_output=True, text=True,
        timeout=SECONDS, check=True,
    )  # fmt: skip
    return {
        name: (status, (folders[name] / "errors").read_text())
        for name, status in json.loads(done.stdout).items()
    }


def program_of(name: str, folder: Path) -> str:
    return "\n".join(
        part
        for before, block in zip(BEFORE[name], blocks_of(ROOT / name), strict=True)
        for part in (before, re.sub(r"/(?=ckpt|serve)", f"{folder}/", block))
    )


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("name", [*BEFORE, TEN_LINES, *MIGRATIONS, NAMES_OF_MIGRATING])
def test_the_blocks_of_a_file_run(endings: dict[str, tuple[int, str]], name: str) -> None:
    if name not in endings:
        pytest.skip(f"needs {NEEDS.get(name, 'a CUDA device, and torch sees none')}")
    status, printed = endings[name]
    assert status == 0, printed
