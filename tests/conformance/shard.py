"""Runs every n-th test of the suite, one after another, and writes what became of each as JSON.

Run by run.py, several at a time: ``python shard.py BACKEND GATES INDEX COUNT PATTERN OUT``.
"""

from __future__ import annotations

import fnmatch
import json
import logging
import sys
import time
import unittest
import warnings
from pathlib import Path
from typing import Any

import suite


class Record(unittest.TestResult):
    """Notes each test's end: passed, failed or skipped, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[dict[str, Any]] = []
        self._began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().startTest(test)
        self._began = time.monotonic()

    def _note(self, test: unittest.TestCase, outcome: str, reason: str = "") -> None:
        seconds = round(time.monotonic() - self._began, 2)
        name = test.id().split(".")[-1]
        self.outcomes.append(
            {"test": name, "outcome": outcome, "reason": reason, "seconds": seconds}
        )
        print(f"{outcome:8}{seconds:7.2f} s  {name}  {reason.splitlines()[-1] if reason else ''}")

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._note(test, "skipped", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._note(test, "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addFailure = addError  # noqa: N815


def main() -> None:
    backend, gates, index, count, pattern, out = sys.argv[1:]
    warnings.simplefilter("ignore")
    if backend == "gradring":
        import gradring.torch  # noqa: F401 - registers the backend
    case = suite.load(backend, gates)
    logging.disable(logging.INFO)
    names = unittest.defaultTestLoader.getTestCaseNames(case)
    names = [name for name in names if fnmatch.fnmatch(name, f"*{pattern}*")]
    result = Record()
    for name in names[int(index) :: int(count)]:
        case.setUpClass()
        case(name).run(result)
    Path(out).write_text(json.dumps(result.outcomes))


if __name__ == "__main__":
    main()
