"""Runs PyTorch's tests of a backend on ours and holds the outcome to the committed list.

``make conformance`` runs it. Everything that is not skipped has to pass, and what is skipped has to
be what docs/conformance.md lists; ``--write`` writes that page. ``--backend gloo`` runs the same on
PyTorch's own backend, for comparison.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import page
import suite

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "conformance.md"
# Tests that have to run, at the least, on a machine without a GPU.
AT_LEAST = {"any": 66, "gloo": 90, "mpi": 90}
SECONDS = 1800

Outcome = dict[str, Any]


def run(backend: str, gates: str, jobs: int, pattern: str) -> list[Outcome]:
    """Run a set of tests in several processes."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{index}.json" for index in range(jobs)]
        shards = [
            subprocess.Popen(
                [
                    sys.executable, str(HERE / "shard.py"), backend, gates, str(index), str(jobs),
                    pattern, str(out),
                ],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
            for index, out in enumerate(outs)
        ]  # fmt: skip
        try:
            for shard in shards:
                shard.wait(SECONDS)
        finally:
            for shard in shards:
                shard.kill()
        outcomes = [json.loads(out.read_text()) for out in outs if out.exists()]
    if len(outcomes) != jobs:
        sys.exit("a process of the suite died; see above")
    return sorted(itertools.chain(*outcomes), key=lambda outcome: outcome["test"])


def complaints(gates: str, outcomes: list[Outcome], pattern: str) -> list[str]:
    """Return what is wrong with a run."""
    by_outcome = defaultdict(list)
    for outcome in outcomes:
        by_outcome[outcome["outcome"]].append(outcome)
    found = [f"{outcome['test']} failed:\n{outcome['reason']}" for outcome in by_outcome["failed"]]
    if pattern:
        return found
    passed = len(by_outcome["passed"])
    if passed < AT_LEAST[gates]:
        found.append(f"only {passed} tests passed; at least {AT_LEAST[gates]} have to")
    listed = page.skips_in(PAGE.read_text(), gates)
    skipped = {outcome["test"]: outcome["reason"] for outcome in by_outcome["skipped"]}
    found += [
        f"{test} is skipped, and {PAGE.name} does not say so: {skipped[test]}"
        for test in sorted(set(skipped) - listed)
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="gradring")
    parser.add_argument("--gates", choices=suite.GATES, nargs="+", help="only these sets")
    parser.add_argument("--jobs", type=int, default=2, help="tests that run at the same time")
    parser.add_argument("-k", dest="pattern", default="", help="only tests with this in their name")
    parser.add_argument("--write", action="store_true", help="write the list")
    options = parser.parse_args()
    sets = options.gates or list(suite.GATES)
    runs = {gates: run(options.backend, gates, options.jobs, options.pattern) for gates in sets}
    if options.write:
        PAGE.write_text(page.text(runs, suite.WORLD_SIZE))
    found: list[str] = []
    for gates, outcomes in runs.items():
        counts = defaultdict(int)
        for outcome in outcomes:
            counts[outcome["outcome"]] += 1
        print(f"{options.backend}, tests for {gates}: {dict(counts)}")
        if options.backend == "gradring":
            found += complaints(gates, outcomes, options.pattern)
    sys.exit("\n".join(found) if found else 0)


if __name__ == "__main__":
    main()
