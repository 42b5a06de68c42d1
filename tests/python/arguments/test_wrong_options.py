"""Options of a wrong kind are refused where they are given, by the name that they were given by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer
from gradring.launchers import roles

SGD = gr.optim.SGD(lr=1.0)
LONE = "half a \ud800"
MET = {"rendezvous": "node1:4000"}


def distributed(**options: Any) -> Any:
    return gr.distributed([np.zeros(2, np.float32)], SGD, **options)


def span(name: Any) -> Any:
    return gr.trace.span(name)


WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "servers as text": (
        r"ps is a str; give what gr.ps.connect\(",
        lambda: gr.AsyncOptimizer([], SGD, "host:1", workers=1),
    ),
    "a span without a name": ("span: the name is UTF-8 text, got None", lambda: span(None)),
    "a span of bytes": ("span: the name is UTF-8 text, got b'x'", lambda: span(b"x")),
    "a span of half a character": ("span: the name is UTF-8 text", lambda: span(LONE)),
    "ranks as a number": ("comm is a int", lambda: distributed(comm=3)),
    "ranks of SyncOptimizer": ("comm is a int", lambda: gr.SyncOptimizer([], SGD, 3)),  # type: ignore[arg-type]
    "a rate of two": ("lr is no number", lambda: gr.optim.SGD(lr=np.ones(2))),  # type: ignore[arg-type]
    "a rate below 0": ("lr must be finite and not negative, got -1", lambda: gr.optim.SGD(lr=-1)),
    "a rate without end": (
        "lr must be finite and not negative, got inf",
        lambda: gr.optim.Adam(lr=math.inf),
    ),
    "a beta of 1": (
        r"betas are two numbers in \[0, 1\), got \(0.9, 1\)",
        lambda: gr.optim.Adam(betas=(0.9, 1)),
    ),
    "a norm of 0 to clip to": (
        "clip_norm must be positive and finite, got 0",
        lambda: gr.optim.SGD(lr=1, clip_norm=0),
    ),
    "an endless dampening": (
        "dampening must be finite, got inf",
        lambda: gr.optim.SGD(lr=1, dampening=math.inf),
    ),
    "an interface as a number": ("interface is a int", lambda: gr.init(interface=3)),  # type: ignore[arg-type]
    "a negative rank": ("^rank=-1", lambda: gr.init(rank=-1)),
    "a port of letters": (
        "^rendezvous='h:80a'",
        lambda: gr.init(rank=0, world_size=2, rendezvous="h:80a"),
    ),
}


@pytest.mark.parametrize(("words", "call"), WRONG.values(), ids=WRONG)
def test_it_is_refused_by_name(words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(gr.InvalidArgument, match=words):
        call()


CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a number for a subgroup": ("subgroup: name", lambda comm: comm.subgroup([0], 5)),
    "half a name for a subgroup": ("subgroup: name", lambda comm: comm.subgroup([0], LONE)),
    "a bucket as text": (
        "bucket_bytes must be positive, got '1'",
        lambda comm: comm.all_reduce_many([np.ones(1)], bucket_bytes="1"),
    ),
    "float64 to compress": (
        "all_reduce_compressed: x has dtype float64",
        lambda comm: comm.all_reduce_compressed(np.ones(10), "bf16"),
    ),
    "a residual of another size": (
        "all_reduce_compressed: residual has 3 elements, x has 10",
        lambda comm: comm.all_reduce_compressed(
            np.ones(10, np.float32), "bf16", np.zeros(3, np.float32)
        ),
    ),
}


@pytest.mark.parametrize(("words", "call"), CALLS.values(), ids=CALLS)
def test_a_communicator_refuses_it_by_name(
    world: GetWorld, words: str, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(gr.InvalidArgument, match=words):
        call(world(1, "shm").comms[0])


def test_a_connection_refuses_it_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADRING_SERVERS", raising=False)
    with gr.ps.connect() as ps:
        for call in (ps.pull_many, ps.push_many):
            with pytest.raises(gr.InvalidArgument, match="takes a list of"):
                call(None)  # type: ignore[arg-type]
        with pytest.raises(gr.InvalidArgument, match="table's name is UTF-8"):
            ps.sparse_table(LONE, 2, SGD)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip_norm": "x"}, "clip_norm must be positive, got 'x'"),
        ({"bucket_bytes": "x"}, "bucket_bytes must be positive, got 'x'"),
        ({"model": [1]}, "model is a list"),
        ({"comm": 3}, "comm is a int"),
    ],
)
def test_distributed_of_torch_refuses_it_by_name(options: dict[str, Any], words: str) -> None:
    torch = pytest.importorskip("torch")
    import gradring.torch as gt

    with pytest.raises(gr.InvalidArgument, match=words):
        gt.distributed(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sparse": True}, "sparse: there is no such setting"),
        ({"mode": "mean"}, "pooling='sum'"),
        ({"max_norm": 1}, "max_norm: there is no such setting"),
        ({"padding_idx": 2**64}, "padding_idx is an id, .* got 18446744073709551616"),
        ({"padding_idx": 0.5}, "padding_idx is an id, .* got 0.5"),
        ({"padding_idx": [1, 2]}, "padding_idx is an id, .* got"),
        ({"cache_age": 5}, "without device= none does"),
    ],
)
def test_an_embedding_refuses_what_it_has_not(options: dict[str, Any], words: str) -> None:
    pytest.importorskip("torch")
    import gradring.torch as gt

    with pytest.raises(gr.InvalidArgument, match=words):
        gt.Embedding("e", 2, optimizer=SGD, ps=ExactServer().client(0), **options)


def test_an_embedding_says_that_an_address_is_no_connection() -> None:
    torch = pytest.importorskip("torch")
    import gradring.torch as gt

    layer = gt.Embedding("e", 2, optimizer=SGD, ps="host:1")
    with pytest.raises(gr.InvalidArgument, match="ps is a str"):
        layer(torch.tensor([1]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({**MET, "rank": 3, "world_size": 3}, "rank=3 is not below world_size=3"),
        ({**MET, "rank": 0, "world_size": 0}, "world_size=0: a world has at least one rank"),
        ({"world_size": 10**9}, "world_size=1000000000: a job has at most 16384 ranks"),
        ({"rank": 10**12}, "rank=1000000000000: a job has at most 16384 ranks"),
        ({"rank": 1}, "rank=1 set, GRADRING_WORLD_SIZE, GRADRING_RENDEZVOUS missing"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named_rather_than_a_variable(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(gr.InvalidArgument) as refused:
        roles.discover({}, **arguments)
    assert words in str(refused.value)
    assert not any(f"GRADRING_{name.upper()}" in str(refused.value) for name in arguments)


def test_a_world_beyond_all_limits_is_refused_by_its_variable() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "20000", "MASTER_ADDR": "node1", "MASTER_PORT": "4000"}
    words = "^WORLD_SIZE=20000: a job has at most 16384 ranks"
    with pytest.raises(gr.InvalidArgument, match=words):
        roles.discover(environ)
