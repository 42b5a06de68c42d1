"""Fixtures of several rooms: ranks as threads (`world`) and as processes (`job`), servers, no GPU.

And the order in which files of tests begin, for `--dist loadfile`.
"""

from __future__ import annotations

import importlib.util
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulated import emulated_plugin
from fake_nccl import compile_library
from mode_servers import KINDS, RealServers, Servers, make_servers
from rank_job import Job
from thread_ranks import TRANSPORTS, ThreadWorld

GetWorld = Callable[[int, str], ThreadWorld]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-transport", action="store_true",
        help="also tests that mean the same over each of them run over each (else over one)",
    )  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose a transport where one is enough.

    Where several processes test, mix the files, by a checksum of their names.

    In the alphabet's order those that start the most ranks (test_torch_...) come together, and
    ranks that have too few cores beside the spinning of others take many times as long.
    """
    if not config.getoption("every_transport"):
        left_out = {item for item in items if _has_another_transport(item)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    if config.getoption("numprocesses", None) is not None or hasattr(config, "workerinput"):
        items.sort(key=lambda item: zlib.crc32(item.path.name.encode()))


def _has_another_transport(item: pytest.Item) -> bool:
    """Tell whether a test of modes, or one marked so, is made over a transport that is not its.

    Its name chooses, so that half of the tests are made over each.
    """
    params: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    used = params.get("servers")
    if used is None and item.get_closest_marker("one_transport") is not None:
        used = params.get("transport")
    if used not in TRANSPORTS:
        return False
    name = item.nodeid.replace(str(used), "")
    return used != TRANSPORTS[zlib.crc32(name.encode()) % len(TRANSPORTS)]


def pytest_sessionstart() -> None:
    """Hear of Ctrl-C and a closed terminal: programs that tests start inherit what we do.

    nohup, and shells that start us in the background, have us ignore them.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the records of failures that tests bring about out of the system's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADRING_RECORD", str(tmp_path_factory.mktemp("records") / "{job}"))
        yield


@pytest.fixture(scope="session")
def _worlds() -> Iterator[dict[tuple[int, str], ThreadWorld]]:
    worlds: dict[tuple[int, str], ThreadWorld] = {}
    yield worlds
    for world in worlds.values():
        world.close()


@pytest.fixture(scope="session")
def emulated_gpu() -> Iterator[Path]:
    """Have this process, and those it starts, take the emulated GPU for its GPU.

    Once a process has looked for a GPU it stays with what it found.
    """
    plugin = emulated_plugin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADRING_GPU_PLUGIN", str(plugin))
        yield plugin


@pytest.fixture
def no_gpu_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process not open the GPU plugin of the build: it can have one only.

    Tests of device arrays that come after in this process need the emulated one.
    """
    monkeypatch.setenv("GRADRING_GPU_PLUGIN", str(tmp_path / "none.so"))


@pytest.fixture(scope="session")
def fake_nccl(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Compile the fake NCCL once, for all of pytest's processes; returns its path."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    return compile_library(folder / "nccl")


@pytest.fixture
def world(_worlds: dict[tuple[int, str], ThreadWorld]) -> GetWorld:
    """Ask for ranks by number and transport; one that a test has broken is replaced."""

    def get(size: int, transport: str) -> ThreadWorld:
        key = (size, transport)
        if key in _worlds and not _worlds[key].is_usable:
            _worlds.pop(key).close()
        if key not in _worlds:
            _worlds[key] = ThreadWorld(size, transport)
        return _worlds[key]

    return get


@pytest.fixture(params=KINDS)
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Parameter servers: the exact reference, then real ones over each transport."""
    made = make_servers(request.param)
    yield made
    made.close()


@pytest.fixture
def real_servers() -> Iterator[RealServers]:
    """Parameter servers over TCP alone, for what the reference does not have."""
    made = RealServers("tcp")
    yield made
    made.close()


@pytest.fixture
def fresh_world() -> Iterator[Callable[..., ThreadWorld]]:
    """Make ranks that the test may break or close itself."""
    made: list[ThreadWorld] = []

    def make(size: int, transport: str, **options: object) -> ThreadWorld:
        made.append(ThreadWorld(size, transport, **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


def _jobs(directory: Path, *modules: str) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(*args: object, **options: object) -> Job:
        jobs.append(Job(directory / f"job{len(jobs)}", *modules))
        jobs[-1].start(*args, **options)
        return jobs[-1]

    yield start
    for started in jobs:
        started.clean_up()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start ranks as processes; whatever still runs in the end is killed."""
    yield from _jobs(tmp_path)


@pytest.fixture
def torch_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start ranks that have imported PyTorch: that takes longer than most of what they do."""
    yield from _jobs(tmp_path, "gradring.torch")


@pytest.fixture
def jax_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start ranks that have imported JAX; once it is in use they could not be forked."""
    extra = ["optax"] if importlib.util.find_spec("optax") else []
    yield from _jobs(tmp_path, "gradring.jax", "pytest", *extra)


@pytest.fixture
def _cuda() -> None:
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("torch sees no CUDA device")
