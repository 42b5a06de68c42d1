"""Hold the instructions of the hot paths to a baseline: a slower path is seen where no clock is.

Runs gradring_instructions under valgrind, each case twice, and takes the difference: starting up
drops out. What valgrind shows a program of a processor is the same everywhere with AVX2, but other
compilers make other code, so a baseline is one compiler's; for another nothing is compared and the
exit status is 77.

    python tests/instructions/compare.py build/release/tests/instructions/gradring_instructions
    python tests/instructions/compare.py PROGRAM --write      # after a change that is meant
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

BASELINE = Path(__file__).with_name("baseline.json")
ALLOWED = 0.05
SKIPPED = 77


def instructions(program: str, case: str, repetitions: int) -> int:
    """Return how many instructions one run took, by valgrind's count."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no"]
    command += ["--cachegrind-out-file=/dev/null", program, case, str(repetitions)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    found = re.search(r"I\s+refs:\s+([\d,]+)", run.stderr)
    if run.returncode != 0 or not found:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr}")
    return int(found[1].replace(",", ""))


def measure(program: str) -> dict[str, float]:
    """Return the instructions of one unit of every case."""
    listed = subprocess.run([program], capture_output=True, text=True, check=True, timeout=20)
    counts = {}
    for line in listed.stdout.splitlines():
        name, per_repetition, _ = line.split("\t")
        few, many = (4, 12) if int(per_repetition) > 1 else (20, 120)
        work = instructions(program, name, many) - instructions(program, name, few)
        counts[name] = round(work / (many - few) / int(per_repetition), 2)
    return counts


def main() -> int:
    """Measure, then compare or write."""
    parser = argparse.ArgumentParser(description="instructions of the hot paths")
    parser.add_argument("program")
    parser.add_argument("--compiler", default="", help="as CMake names it: GNU 12")
    parser.add_argument("--write", action="store_true", help="make this the baseline")
    options = parser.parse_args()
    baseline = json.loads(BASELINE.read_text())
    if not options.write and options.compiler not in ("", baseline["compiler"]):
        print(f"the baseline is of {baseline['compiler']}, this is {options.compiler}")
        return SKIPPED
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        print("the baseline is of a processor with AVX2, this one has none")
        return SKIPPED
    counts = measure(options.program)
    if options.write:
        baseline["instructions"] = counts
        BASELINE.write_text(json.dumps(baseline, indent=2) + "\n")
    worst = 0.0
    gone = sorted(baseline["instructions"].keys() - counts.keys())
    if gone:
        print(f"the program has no case {', '.join(gone)} any more; if that is meant, --write")
        return 1
    for name, count in counts.items():
        before = baseline["instructions"].get(name, 0.0)
        change = count / before - 1 if before else float("inf")
        worst = max(worst, abs(change))
        print(f"{name:14} {count:12.2f} {before:12.2f} {change:+8.1%}")
    if worst > ALLOWED:
        print(f"more than {ALLOWED:.0%} away from {BASELINE}: mend it or, if meant, --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
