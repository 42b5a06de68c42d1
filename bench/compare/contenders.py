"""Who trains what: our programs from examples/, the peers' from bench/ps_peers/.

Every program trains on the same made stream or text with the same model, on two workers and, where
there is one, a server, all on this machine's cores; each worker computes on one thread. The last
line of JSON that a program prints or writes holds its rate and its quality.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compare.environments import Environment

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAMS = _ROOT / "bench" / "ps_peers"
QUALITY = ("analogies", "held-out loss", "test AUC", "best AUC", "talking")
# Of the rows of the made stream. SGD at a rate that learns as much diverges as soon as two workers
# step from rows of the same age.
_ADAGRAD = ("--rule", "adagrad", "--lr", "0.1")
# GEO, ours and Paddle's: steps between exchanges, few enough to learn as one process does.
# Steps between two exchanges, and exchanges that a rare row may wait for (ours only).
_K_STEPS, _RARE_EVERY = "25", {"words": "16", "pairs": "4"}
# What these cores can do at once when nobody talks: no mode can be faster.
_APART = "gradring local, a process for each worker, apart"
_PAIRS = {"quick": 512_000, "default": 1_024_000, "full": 2_048_000}
_WORDS = {"quick": 2_000_000, "default": 6_500_000, "full": 6_500_000}
_EXAMPLES = {"quick": 51_200, "default": 102_400, "full": 204_800}


@dataclass(frozen=True)
class Contender:
    """A program.

    Attributes:
        command: How to run it; OUT stands for a file that it writes, where it does not print.
        environment: Whose it is; empty: ours.
    """

    command: tuple[str, ...]
    environment: str = ""


@dataclass(frozen=True)
class Part:
    """Programs that do the same work.

    Attributes:
        title: What they train on.
        unit: Of the rate.
        contenders: By name, in the order of a round.
    """

    title: str
    unit: str
    contenders: dict[str, Contender]


def parts(what: str, options: argparse.Namespace, found: Mapping[str, Environment]) -> list[Part]:
    """Return the comparisons of a workload."""
    if what == "ctr":
        return [_clicks(options, found)]
    return [_text(options, found), _pairs(options, found)]


def _text(options: argparse.Namespace, found: Mapping[str, Environment]) -> Part:
    epochs = "5" if options.extent == "full" else "1"
    words = str(options.examples or _WORDS[options.extent])
    same = ("--epochs", epochs, "--words", words)
    # Steps of 8 blocks: with many more, the sum of their gradients is too long a step for frequent
    # words, and training goes to NaN (64 blocks, 5 epochs).
    geo = ("--mode", "geo", "--k-steps", _K_STEPS, "--rare-every", _RARE_EVERY["words"], *same)
    gensim = (*_peer("gensim", found, "gensim_word2vec.py"), *_workers(options), *same)
    return Part(
        f"word2vec on text, {int(words):,} words, {epochs} epochs, dim 100", "words",
        {
            "gradring local, 1 thread": _alone("word2vec.py", *same),
            _APART: _job(options, "word2vec.py", "--mode", "apart", *same),
            "gradring sync": _job(options, "word2vec.py", "--mode", "sync", *same),
            "gradring async": _job(options, "word2vec.py", "--mode", "async", *same),
            "gradring geo": _job(options, "word2vec.py", *geo),
            "gensim": Contender(gensim, "gensim"),
        },
    )  # fmt: skip


def _pairs(options: argparse.Namespace, found: Mapping[str, Environment]) -> Part:
    pairs = str(options.examples or _PAIRS[options.extent])
    same = ("--synthetic", "--epochs", "1", "--dim", "128", "--examples", pairs, *_ADAGRAD)
    paddle = (*_peer("paddle", found, "paddle_word2vec.py"), *_workers(options), "--pairs", pairs)
    tf = (*_peer("tf", found, "tf_word2vec.py"), *_workers(options), "--pairs", pairs)
    geo = ("--mode", "geo", "--k-steps", _K_STEPS)
    rare = ("--rare-every", _RARE_EVERY["pairs"])
    return Part(
        f"word2vec on a made stream, {int(pairs):,} pairs with 5 negatives each, dim 128", "pairs",
        {
            "gradring local, 1 thread": _alone("word2vec.py", *same),
            _APART: _job(options, "word2vec.py", "--mode", "apart", *same),
            "gradring sync": _job(options, "word2vec.py", "--mode", "sync", *same),
            "gradring async": _job(options, "word2vec.py", "--mode", "async", *same),
            "gradring geo": _job(options, "word2vec.py", *geo, *rare, *same),
            "Paddle geo": Contender((*paddle, *geo), "paddle"),
            "Paddle async": Contender((*paddle, "--mode", "async"), "paddle"),
            "TensorFlow PS": Contender(tf, "tf"),
        },
    )  # fmt: skip


def _clicks(options: argparse.Namespace, found: Mapping[str, Environment]) -> Part:
    examples = str(options.examples or _EXAMPLES[options.extent])
    same = ("--data", "synthetic", "--examples", examples)
    peer = (*_workers(options), "--examples", examples)
    paddle = (*_peer("paddle", found, "paddle_ctr.py"), *peer)
    # As many as suit TensorFlow, but functions enough to time when workers have compiled theirs.
    batches = str(max(1, min(16, int(examples) // 12_800)))
    tf = (*_peer("tf", found, "tf_ctr.py"), *peer, "--batches", batches)
    geo = ("--k-steps", "4", "--rare-every", "8")
    ours = {
        f"gradring {mode}": _job(options, "ctr.py", "--mode", mode, *same, *more)
        for mode, *more in (("sync",), ("async",), ("hybrid",), ("geo", *geo))
    }
    return Part(
        f"CTR-DNN on made clicks, {int(examples):,} examples, batch 512", "examples",
        {
            "gradring local, all cores": _alone("ctr.py", "--threads", "2", *same),
            **ours,
            "Paddle async": Contender((*paddle, "--mode", "async"), "paddle"),
            "Paddle geo": Contender((*paddle, "--mode", "geo", "--k-steps", "20"), "paddle"),
            "TensorFlow PS": Contender(tf, "tf"),
        },
    )  # fmt: skip


def _alone(program: str, *more: str) -> Contender:
    return Contender((sys.executable, str(_ROOT / "examples" / program), *more, "--out", "OUT"))


def _job(options: argparse.Namespace, program: str, *more: str) -> Contender:
    run = ("-m", "gradring", "run", "-n", str(options.workers), "--servers", "1")
    script = str(_ROOT / "examples" / program)
    return Contender((sys.executable, *run, script, *more, "--out", "OUT"))


def _peer(name: str, found: Mapping[str, Environment], program: str) -> tuple[str, ...]:
    return found[name].python, str(_PROGRAMS / program)


def _workers(options: argparse.Namespace) -> tuple[str, str]:
    return "--workers", str(options.workers)
