"""`gradring demo`: trains on local workers and holds the result against one process.

It runs three jobs on the same global batches: one process that takes each batch whole, one that
takes it in the workers' parts and averages as they do, and the workers. Then it learns who clicks,
asynchronously, on a parameter server inside its own process. It fails where a promise does not
hold: accuracy, workers equal among themselves, workers equal to one process, clicks foretold nearly
as well as they can be.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.commands.output_files import require_writable, write_json
from gradring.commands.own_modules import module_command
from gradring.demo.clicks import ClickOutcome, train_clicks
from gradring.demo.digits import load_digits
from gradring.demo.options import shared_options
from gradring.errors import InvalidArgument
from gradring.launch import job
from gradring.launch.options import Options

ACCURACY = 0.95
DIFFERENCE = 1e-5
AUC_MISSING = 0.03

# Several threads in BLAS could add up differently from one job to the next.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Outcome:
    """What one job left behind.

    Attributes:
        params: Each rank's parameters, in one flat array.
        accuracy: On the test pictures.
        rate: Examples a second of all ranks together.
        losses: Mean training loss of each epoch.
    """

    params: list[npt.NDArray[np.float64]]
    accuracy: float
    rate: float
    losses: list[float]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        argv: Arguments after ``gradring demo``.

    Returns:
        0 if all promises held, 1 if not, or the exit code of a job that failed.
    """
    options = _options(argv)
    load_digits()  # Complains before anything is started.
    os.environ.update(_ONE_THREAD)
    n = options.workers
    with tempfile.TemporaryDirectory(prefix="gradring-demo-") as directory:
        outcomes: dict[str, Outcome] = {}
        for name, label, ranks, more in (
            ("whole", "1 process, whole batches", 1, []),
            ("parts", f"1 process, batches in {n} parts", 1, ["--parts", str(n)]),
            ("workers", f"{n} workers", n, []),
        ):
            if name == "workers":
                more = ["--baseline", str(outcomes["whole"].rate)]  # noqa: PLW2901
            out = Path(directory) / name
            code = _run_job(options, ranks, [str(out), "--label", label, *more])
            if code != 0:
                return code
            outcomes[name] = _read(out, ranks)
    code, facts = _report(n, **outcomes)
    clicks_code, facts["clicks"] = _report_clicks(train_clicks(options.seed))
    if options.json is not None:
        write_json(options.json, facts)
    return max(code, clicks_code)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gradring demo",
        parents=[shared_options()],
        description="Trains a small network on scikit-learn's digits on local workers, and "
        "compares with one process on the same batches. Then it learns who clicks, on a parameter "
        "server.",
    )
    parser.add_argument("--workers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    options = parser.parse_args(argv)
    if str(options.json) == "-":
        raise InvalidArgument("demo: --json - is no file; the demo itself goes to standard output")
    require_writable(options.json, "demo: --json", is_replaced=True)
    if not 0 <= options.seed < 1 << 32:
        raise InvalidArgument(f"demo: --seed {options.seed}: not a number from 0 to 2^32 - 1")
    if options.workers < 1 or options.epochs < 1:
        raise InvalidArgument("demo: --workers and --epochs start at 1")
    if options.global_batch < 1 or options.global_batch % options.workers:
        raise InvalidArgument(
            f"demo: --global-batch {options.global_batch} cannot be shared by {options.workers} "
            "workers; use a multiple"
        )
    return options


def _run_job(options: argparse.Namespace, ranks: int, arguments: list[str]) -> int:
    shared = ["--epochs", options.epochs, "--global-batch", options.global_batch]
    shared += ["--seed", options.seed]
    command = module_command("gradring.demo.worker", *map(str, shared), *arguments)
    return job.run(Options(command=tuple(command), count=ranks, prefix=False, quiet=True))


def _read(out: Path, ranks: int) -> Outcome:
    params = []
    for rank in range(ranks):
        with np.load(f"{out}.{rank}.npz") as saved:
            params.append(np.concatenate([saved[name].ravel() for name in saved.files]))
    facts = json.loads(Path(f"{out}.0.json").read_text())
    return Outcome(params, facts["accuracy"], facts["examples_per_second"], facts["losses"])


def _report(
    n: int, *, whole: Outcome, parts: Outcome, workers: Outcome
) -> tuple[int, dict[str, Any]]:
    one, many = f"1 process, batches in {n} parts", f"{n} workers"
    print()
    print(f"{'':34}{'test accuracy':>15}{'last loss':>12}{'examples/s':>13}")
    for label, outcome in (("1 process, whole batches", whole), (one, parts), (many, workers)):
        print(f"{label:34}{outcome.accuracy:15.4f}{outcome.losses[-1]:12.6f}{outcome.rate:13,.0f}")
    print(f"speed-up of {many} over 1 process: {workers.rate / whole.rate:.2f}\n")

    to_parts = _difference(workers.params[0], parts.params[0])
    to_whole = _difference(workers.params[0], whole.params[0])
    same = all(np.array_equal(params, workers.params[0]) for params in workers.params)
    # a + b is b + a: with two workers there is only one order of additions.
    is_exact = n <= 2
    checks = [
        (
            f"accuracy of {many} is at least {ACCURACY}",
            workers.accuracy >= ACCURACY,
            f"{workers.accuracy:.4f}",
        ),
        ("all workers hold the same parameters, bit for bit", same, ""),
        (
            f"their parameters are those of {one}",
            to_parts == 0 if is_exact else to_parts < DIFFERENCE,
            "bit for bit" if to_parts == 0 else f"largest difference {to_parts:.1e}",
        ),
        (
            f"and those of 1 process, whole batches, but for rounding (< {DIFFERENCE:g})",
            to_whole < DIFFERENCE,
            f"largest difference {to_whole:.1e}",
        ),
    ]
    for text, holds, detail in checks:
        print(f"{'yes' if holds else 'NO ':4} {text}{': ' if detail else ''}{detail}")
    all_hold = [holds for _, holds, _ in checks]
    facts = _facts(n, whole, workers, to_parts, to_whole, all_hold)
    return 0 if all(all_hold) else 1, facts


def _report_clicks(outcome: ClickOutcome) -> tuple[int, dict[str, Any]]:
    holds = outcome.auc >= outcome.best_auc - AUC_MISSING
    print("\nwho clicks? Embeddings and a network on a parameter server, trained asynchronously:")
    print(
        f"{outcome.rate:,.0f} examples/s, {outcome.rows} rows, gradients at most "
        f"{outcome.staleness} updates late\n"
    )
    print(
        f"{'yes' if holds else 'NO ':4} AUC on new examples is within {AUC_MISSING} of "
        f"{outcome.best_auc:.4f}, what knowing every probability gives: {outcome.auc:.4f}"
    )
    return 0 if holds else 1, {**vars(outcome), "holds": holds}


def _difference(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    return float(np.abs(a - b).max())


def _facts(*values: Any) -> dict[str, Any]:
    names = ("workers", "whole", "together", "difference_to_parts", "difference_to_whole", "holds")
    return {
        name: {
            "accuracy": value.accuracy,
            "examples_per_second": value.rate,
            "losses": value.losses,
        }
        if isinstance(value, Outcome)
        else value
        for name, value in zip(names, values, strict=True)
    }
