"""The row benchmark beside ps-lite and torch's RPC, in turn, on one machine and the same ids.

    python bench/ps_peers/rows.py --ps-lite DIR [--workers 2] [--rule adagrad] [--do train]

DIR is a checkout of ps-lite with libpslite.a built in DIR/build; the row program is compiled
against it. Peers get distinct sorted ids for nothing: finding them, and spreading rows over the
places of an id, is part of our time and not of theirs, except where ours says "distinct". A row
counts once for each id of a batch, also in a pair of pull and push. Rounds of all
are interleaved: A B C A B C.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from gradring.bench.report import machine_facts
from gradring.bench.rows.ids import zipf_ids

HERE = Path(__file__).parent
BATCHES = 8
Rates = dict[str, list[float]]


def main() -> int:
    """Measure, print a table, write JSON."""
    options = parse()
    rates: Rates = {}
    with tempfile.TemporaryDirectory(prefix="rows-") as folder:
        ids = Path(folder) / "ids"
        rows = write_ids(options, ids)
        program = build_ps_lite(Path(options.ps_lite), Path(folder)) if options.ps_lite else None
        for turn in range(options.turns):
            for transport in ("shm", "tcp"):
                add(rates, f"gradring {transport}", ours(options, transport))
                add(
                    rates, f"gradring {transport}, distinct", ours(options, transport, "--distinct")
                )
            add(rates, "torch rpc", torch_rpc(options, ids, rows))
            if program is not None:
                add(rates, "ps-lite", ps_lite(options, program, ids, rows))
            print(f"turn {turn + 1} of {options.turns}", file=sys.stderr)
    document = {
        "command": "python bench/ps_peers/rows.py " + " ".join(sys.argv[1:]),
        "machine": machine_facts(),
        "do": options.do, "rule": options.rule, "workers": options.workers, "dim": options.dim,
        "million_rows_per_s": {name: [one / 1e6 for one in found] for name, found in rates.items()},
    }  # fmt: skip
    show(rates)
    if options.json:
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_option = parser.add_argument
    add_option("--ps-lite", metavar="DIR")
    add_option("--workers", type=int, default=1)
    add_option("--rule", choices=("sgd", "adagrad"), default="sgd")
    add_option("--do", choices=("pull", "train"), default="train")
    add_option("--turns", type=int, default=5)
    add_option("--rounds", type=int, default=3)
    add_option("--calls", type=int, default=16)
    add_option("--dim", type=int, default=64)
    add_option("--ids", type=int, default=65_536)
    add_option("--rows", type=int, default=10_000_000)
    add_option("--zipf", type=float, default=1.05)
    add_option("--json", metavar="FILE")
    return parser.parse_args()


def write_ids(options: argparse.Namespace, path: Path) -> int:
    """Write each worker's batches of distinct ids for the peers; returns how many rows exist."""
    every = [
        [
            np.unique(zipf_ids(options.rows, options.ids, options.zipf, worker * BATCHES + nth))
            for nth in range(BATCHES)
        ]
        for worker in range(options.workers)
    ]
    known = np.unique(np.concatenate([batch for batches in every for batch in batches]))
    for worker, batches in enumerate(every):
        with Path(f"{path}.{worker}").open("wb") as file:
            for batch in batches:
                np.uint64(batch.size).tofile(file)
                batch.tofile(file)
        places = [np.searchsorted(known, batch) for batch in batches]
        np.savez(f"{path}.{worker}.npz", *places)
    return int(known.size)


def build_ps_lite(checkout: Path, folder: Path) -> Path:
    """Compile the row program."""
    program = folder / "ps_lite_rows"
    build = checkout / "build"
    subprocess.run(
        ["g++", "-std=c++17", "-O3", "-march=native", f"-I{checkout}/include", f"-I{build}", "-w",
         str(HERE / "ps_lite_rows.cc"), str(build / "libpslite.a"), "-lzmq", "-lprotobuf",
         "-lpthread", "-o", str(program)],
        check=True,
    )  # fmt: skip
    return program


def ours(options: argparse.Namespace, transport: str, *more: str) -> list[float]:
    """Run `gradring bench`; returns rows per second of each round."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run(
            [sys.executable, "-m", "gradring", "bench", options.do, "-n", str(options.workers),
             "--ids", str(options.ids), "--rows", str(options.rows), "--dim", str(options.dim),
             "--zipf", str(options.zipf), "--optimizer", options.rule, "--transport", transport,
             "--rounds", str(max(5, options.rounds)), "--seconds", "0.3", "--json", file.name,
             *more],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        operation = json.loads(Path(file.name).read_text())["operations"][0]
    return [float(operation["rows_per_s"])]


def torch_rpc(options: argparse.Namespace, ids: Path, rows: int) -> list[float]:
    """Run the program on torch's RPC; returns rows per second of each round."""
    port = free_port()
    common = [
        sys.executable, str(HERE / "torch_rpc_rows.py"), "--workers", str(options.workers),
        "--rows", str(rows), "--dim", str(options.dim), "--rounds", str(options.rounds),
        "--calls", str(options.calls), "--port", str(port), "--ids", str(ids),
        "--rule", options.rule, "--do", options.do,
    ]  # fmt: skip
    return run_all(options, [[*common, "--rank", str(rank)] for rank in range(options.workers + 1)])


def ps_lite(options: argparse.Namespace, program: Path, ids: Path, rows: int) -> list[float]:
    """Run the program on ps-lite; returns rows per second of each round."""
    environ = {
        **os.environ,
        "DMLC_NUM_WORKER": str(options.workers), "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1", "ROWS_IDS": str(ids), "ROWS_DIM": str(options.dim),
        "ROWS_RULE": options.rule, "ROWS_DO": options.do, "ROWS_MOST": str(rows + 1),
        "ROWS_ROUNDS": str(options.rounds), "ROWS_CALLS": str(options.calls),
    }  # fmt: skip
    roles = ["scheduler", "server", *["worker"] * options.workers]
    commands = [["env", f"DMLC_ROLE={role}", str(program)] for role in roles]
    return run_all(options, commands, environ)


def run_all(
    options: argparse.Namespace, commands: list[list[str]], environ: dict[str, str] | None = None
) -> list[float]:
    """Run processes together; returns rows per second of the rounds that they print."""
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        for command in commands
    ]
    outputs = [process.communicate(timeout=600)[0] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(f"{commands[0]} failed")
    lines = [line for output in outputs for line in output.splitlines()]
    seconds = [float(line.split()[1]) for line in lines if line.startswith("round ")]
    return [options.workers * options.calls * options.ids / one for one in seconds]


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def add(rates: Rates, name: str, found: list[float]) -> None:
    """Note a turn: the median of its rounds."""
    rates.setdefault(name, []).append(float(np.median(found)))


def show(rates: Rates) -> None:
    """Print medians over the turns, and how often ours are faster."""
    best = max(np.median(found) for name, found in rates.items() if "gradring" not in name)
    for name, found in rates.items():
        median = np.median(found)
        print(
            f"{name:22} {median / 1e6:6.2f} M rows/s ({min(found) / 1e6:.2f}-"
            f"{max(found) / 1e6:.2f}), {median / best:.2f} x the best peer"
        )


if __name__ == "__main__":
    sys.exit(main())
