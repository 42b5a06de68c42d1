"""docs/conformance.md: how PyTorch's suite ended on our backend, and why it skips what it skips."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Outcomes = Sequence[Mapping[str, Any]]

_HEAD = """# Conformance

PyTorch's wheel carries the tests that PyTorch runs on its own backends
(`torch/testing/_internal/distributed/distributed_test.py`). `make conformance` runs them on ours:
{world} processes on the CPU, nothing in the suite changed. Every test that is not skipped has to
pass, and every skip has to be in the lists below, which `tests/conformance/run.py --write` writes.

The tests ask for the backend's name before they run. So there are three sets:

- **any**: what a backend may run whose name PyTorch does not know.
- **gloo**: what PyTorch runs for Gloo. The variable in which the suite keeps the name is then equal
  to both names, and `dist.monitored_barrier`, which refuses all names but gloo, calls our group's
  method of that name.
- **mpi**: what PyTorch runs for MPI, of which the tests of all_to_all and those of subgroups in a
  small world are in neither of the others. The same way.

| set | passed | failed | skipped |
|---|---|---|---|
"""
_MEANING = {
    "any": "Most of them ask for a name that PyTorch knows; they are run in the other two sets.",
    "gloo": "",
    "mpi": "Only those that run in neither of the other sets matter here.",
}


def text(runs: Mapping[str, Outcomes], world: int) -> str:
    """Return the page."""
    lines = [_HEAD.format(world=world).rstrip("\n")]
    for gates, outcomes in runs.items():
        counts = Counter(outcome["outcome"] for outcome in outcomes)
        lines.append(f"| {gates} | {counts['passed']} | {counts['failed']} | {counts['skipped']} |")
    ran = {o["test"] for outcomes in runs.values() for o in outcomes if o["outcome"] == "passed"}
    lines += ["", f"{len(ran)} different tests pass."]
    for gates, outcomes in runs.items():
        lines += ["", f"## Skipped: {gates}", "", _MEANING[gates], ""]
        by_reason: dict[str, list[str]] = defaultdict(list)
        for outcome in outcomes:
            if outcome["outcome"] == "skipped":
                by_reason[_tidy(outcome["reason"])].append(outcome["test"])
        lines += ["| reason, in the suite's words | tests |", "|---|---|"]
        for reason, tests in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
            names = ", ".join(f"`{test}`" for test in sorted(tests))
            lines.append(f"| {reason} ({len(tests)}) | {names} |")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def skips_in(page: str, gates: str) -> set[str]:
    """Return the tests that the page lists as skipped in a set."""
    section = re.search(rf"^## Skipped: {gates}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`(test_\w+)`", section.group(1))) if section else set()


def _tidy(reason: str) -> str:
    # Sets of names come in another order in every process.
    def ordered(match: re.Match[str]) -> str:
        return "{" + ", ".join(sorted(match.group(1).split(", "))) + "}"

    return re.sub(r"\{([^}]*)\}", ordered, reason.strip().splitlines()[-1]).replace("|", "/")
