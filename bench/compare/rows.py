"""Pairs of pull and push of a sparse table beside torch's RPC and ps-lite, in turn, on equal ids.

A row counts once for each id of a batch, also in a pair of pull and push, for everybody. Who gets
distinct ids is named so: finding them, spreading rows over the places of an id and adding up its
gradients is part of the time of all others. Peers' servers hold an array of all rows, in which the
id is the place, so they have no table to look into, and get ids below 10 million; with --compact
ids that occur are numbered beforehand and the array is as small as can be. Ours takes any 64-bit
ids, and gets such. All rows are there before anything is timed; with --compact those that occur.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compare import processes, records
from compare.environments import Environment
from gradring.bench.report import machine_facts
from gradring.bench.rows.ids import zipf_ids

PROGRAMS = Path(__file__).parents[1] / "ps_peers"
BATCHES = 16  # As many as `gradring bench` draws.
IDS, ROWS, DIM, ZIPF = 65_536, 10_000_000, 64, 1.05
_ROUNDS = 3  # In a turn; the median counts.
_COUNTING = [
    (
        f"{IDS:,} ids a call, Zipf {ZIPF} out of {ROWS:,}, {DIM} floats a row, SGD; a row counts "
        "once for each id of a call, also in a pair of pull and push, for everybody"
    ),
    (
        '"distinct": distinct ids are given; all others find them, give rows to every place and '
        "add up gradients in that time, torch RPC by torch.unique, once a pair, and index_add_"
    ),
]
_INDEX = {
    False: "all 10,000,000 rows are there before; peers' servers: an array, ids being places in it "
    "(0 to 9,999,999, hot ones scattered); ours: a hash table, ids scattered over 64 bits",
    True: "only the rows that occur are there; peers' servers: an array, ids numbered beforehand "
    "(torch), or open addressing of known size (ps-lite); ours: a hash table, ids scattered over "
    "64 bits",
}


@dataclass(frozen=True)
class Work:
    """What every contender does.

    Attributes:
        calls: Pairs in a round.
        is_compact: Whether tables have only the rows that occur, peers' numbered beforehand.
        ids: The file of the peers' distinct ids; places are in the one that ends in .npz, and
            places of all ids in the one that ends in .all.npz.
        rows: That the peers' tables need.
        deadline: Seconds for a turn.
    """

    calls: int
    is_compact: bool
    ids: Path
    rows: int
    deadline: float


def estimate(_what: str, options: argparse.Namespace) -> float:
    """Return about how many seconds it takes."""
    return 30.0 + 40.0 * _turns(options)


def run(_what: str, options: argparse.Namespace, found: dict[str, Environment]) -> bool:
    """Measure and save; returns whether ours ran through."""
    name = "rows-compact" if options.compact else "rows"
    compact = ["--compact"] if options.compact else []
    document = {
        "title": ": ".join(["Rows", *compact, "pairs of pull and push, one client, one server"]),
        "command": records.asked_command(),
        "machine": machine_facts(),
        "measured": records.stamp(),
        "about": [*_COUNTING, _INDEX[options.compact], f"{_turns(options)} turns, A B C A B C"],
        "versions": {key: found[key].versions for key in ("gloo", "ps-lite")},
        "missing": {},
        "million_rows_per_s": {},
    }
    with tempfile.TemporaryDirectory(prefix="gradring-rows-") as folder:
        work = _write_ids(options, Path(folder), options.examples or BATCHES)
        contenders = _contenders(work, found, Path(folder), document["missing"])
        for turn in range(_turns(options)):
            for contender, measure in contenders.items():
                if contender in document["missing"] or time.monotonic() > options.until:
                    continue
                rates, reason = measure()
                if reason:
                    document["missing"][contender] = f"{contender}: {reason}"
                    print(f"rows: {contender}: {reason}", file=sys.stderr)
                    continue
                median = float(np.median(rates)) / 1e6
                document["million_rows_per_s"].setdefault(contender, []).append(median)
                records.save(options.json / f"{name}.json", document)
                print(f"rows turn {turn + 1}: {contender} {median:.2f} M/s", file=sys.stderr)
    if document["missing"]:
        records.save(options.json / f"{name}.json", document)
    return not any("gradring" in contender for contender in document["missing"])


Measure = Callable[[], tuple[list[float], str]]


def _turns(options: argparse.Namespace) -> int:
    return options.rounds or {"quick": 3}.get(options.extent, 5)


def _contenders(
    work: Work, found: dict[str, Environment], folder: Path, missing: dict[str, str]
) -> dict[str, Measure]:
    contenders: dict[str, Measure] = {}
    for transport in ("shm", "tcp"):
        contenders[f"gradring, {transport}"] = lambda t=transport: _ours(work, t)
        contenders[f"gradring, {transport}, distinct"] = lambda t=transport: _ours(
            work, t, "--distinct"
        )
    if found["gloo"].reason:
        missing["torch RPC"] = found["gloo"].reason
    else:
        contenders["torch RPC"] = lambda: _torch_rpc(
            work, found["gloo"].python, f"{work.ids}.all", "--merges"
        )
        contenders["torch RPC, distinct"] = lambda: _torch_rpc(
            work, found["gloo"].python, str(work.ids)
        )
    reason = found["ps-lite"].reason
    program = folder / "ps_lite_rows"
    if not reason:
        reason = _build(Path(found["ps-lite"].python), program)
    if reason:
        missing["ps-lite"] = f"ps-lite: {reason}"
    else:
        contenders["ps-lite, distinct"] = lambda: _ps_lite(work, program)
    return contenders


def _write_ids(options: argparse.Namespace, folder: Path, calls: int) -> Work:
    """Write the worker's batches of distinct ids for the peers."""
    every = [zipf_ids(ROWS, IDS, ZIPF, nth) for nth in range(BATCHES)]
    if not options.compact:
        every = [_dense(batch) for batch in every]
    batches = [np.unique(batch) for batch in every]
    path = folder / "ids"
    with path.open("wb") as file:
        for batch in batches:
            np.uint64(batch.size).tofile(file)
            batch.tofile(file)
    known = np.unique(np.concatenate(batches))
    for ids, ending in ((batches, "npz"), (every, "all.npz")):
        places = [np.searchsorted(known, each) if options.compact else each for each in ids]
        np.savez(f"{path}.{ending}", *places)
    rows = known.size if options.compact else ROWS
    return Work(calls, options.compact, path, int(rows), options.deadline or 120.0)


def _dense(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the same ids as numbers below ROWS, hot ones scattered: what an array needs."""
    ranks = ids * np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))  # Undoes zipf_ids' scattering.
    return ranks * np.uint64(7_919_317) % np.uint64(ROWS)  # No common factor: still distinct.


def _build(checkout: Path, program: Path) -> str:
    """Compile the program of ps-lite; returns why that failed."""
    build = checkout / "build"
    ended = subprocess.run(
        ["g++", "-std=c++17", "-O3", "-march=native", f"-I{checkout}/include", f"-I{build}", "-w",
         str(PROGRAMS / "ps_lite_rows.cc"), str(build / "libpslite.a"), "-lzmq", "-lprotobuf",
         "-lpthread", "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return processes.last_lines(ended.stderr, 2) if ended.returncode else ""


def _ours(work: Work, transport: str, *more: str) -> tuple[list[float], str]:
    if work.is_compact:
        more += ("--no-fill",)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        ended = processes.run(
            [[sys.executable, "-m", "gradring", "bench", "train", "-n", "1",
              "--ids", str(IDS), "--rows", str(ROWS), "--dim", str(DIM), "--zipf", str(ZIPF),
              "--optimizer", "sgd", "--transport", transport, "--rounds", "5", "--seconds", "0.3",
              "--json", file.name, *more]],
            work.deadline,
        )  # fmt: skip
        if ended.reason:
            return [], ended.reason
        document = json.loads(Path(file.name).read_text())
    wrong = f"{document['wrong']} elements are wrong" if document["wrong"] else ""
    return [float(document["operations"][0]["rows_per_s"])], wrong


def _torch_rpc(work: Work, python: str, ids: str, *more: str) -> tuple[list[float], str]:
    common = [
        python, str(PROGRAMS / "torch_rpc_rows.py"), "--workers", "1",
        "--rows", str(work.rows), "--dim", str(DIM), "--rounds", str(_ROUNDS), "--calls",
        str(work.calls), "--port", str(_free_port()), "--ids", ids, "--rule", "sgd",
        "--do", "train", *more,
    ]  # fmt: skip
    return _rates(work, [[*common, "--rank", str(rank)] for rank in range(2)])


def _ps_lite(work: Work, program: Path) -> tuple[list[float], str]:
    environ = {
        "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(_free_port()),
        "DMLC_NODE_HOST": "127.0.0.1", "ROWS_IDS": str(work.ids), "ROWS_DIM": str(DIM),
        "ROWS_RULE": "sgd", "ROWS_DO": "train", "ROWS_COMPACT": str(int(work.is_compact)),
        "ROWS_MOST": str(work.rows + 1), "ROWS_ROUNDS": str(_ROUNDS),
        "ROWS_CALLS": str(work.calls),
    }  # fmt: skip
    roles = ["scheduler", "server", "worker"]
    commands = [["env", f"DMLC_ROLE={role}", str(program)] for role in roles]
    return _rates(work, commands, environ)


def _rates(
    work: Work, commands: list[list[str]], environ: dict[str, str] | None = None
) -> tuple[list[float], str]:
    """Run processes together; returns rows per second of the rounds that they print."""
    ended = processes.run(commands, work.deadline, **(environ or {}))
    if ended.reason:
        return [], ended.reason
    lines = [line.split() for line in ended.output.splitlines()]
    seconds = [float(line[1]) for line in lines if line[:1] == ["round"]]
    wrong = [int(line[1]) for line in lines if line[:1] == ["wrong"]]
    if len(seconds) != _ROUNDS or len(wrong) != 1:
        return [], f"it printed {len(seconds)} rounds and {len(wrong)} checks"
    reason = f"{sum(wrong)} rows are wrong" if any(wrong) else ""
    return [work.calls * IDS / one for one in seconds], reason


def _free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
