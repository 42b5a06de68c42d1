"""`gradring doctor --job`: which rank of a job is in which operation, and who is missing.

Asks the ranks of a running job, or reads what a failure left: see docs/flight_recorder.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from gradring.doctor.findings import Status, findings, statuses
from gradring.doctor.jobs import Report, reports_of
from gradring.errors import InvalidArgument

_TITLES = ("rank", "ranks", "in", "for", "waits for", "how far")


def main(job: str, *, as_json: bool = False, environ: Mapping[str, str] | None = None) -> int:
    """Print what each rank does and what is wrong.

    Args:
        job: A process id, an address or a folder.
        as_json: One JSON object, with the whole records, instead of text.
        environ: What to read instead of this process's environment.

    Returns:
        0, or 1 where something is wrong.

    Raises:
        InvalidArgument: There is no such job, or it cannot be asked.
    """
    reports = reports_of(job, os.environ if environ is None else environ)
    try:
        found = findings(reports)
        if as_json:
            ranks = [vars(report) for report in reports]
            text = json.dumps({"ranks": ranks, "findings": found}, allow_nan=False)
        else:
            text = render(reports, found)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{job}: a record lacks what belongs in it: {error!r}") from error
    print(text)
    return 1 if found else 0


def render(reports: Sequence[Report], found: Sequence[str]) -> str:
    """Return the table and the findings as text."""
    rows = [_row(status) for report in reports for status in statuses(report)]
    widths = [max(len(row[column]) for row in (_TITLES, *rows)) for column in range(len(_TITLES))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (_TITLES, *rows)
    ]
    lines += ["", "findings", *(f"  - {text}" for text in found or ["none"])]
    return "\n".join(lines)


def _row(status: Status) -> tuple[str, ...]:
    seconds = "" if status.seconds is None else _duration(status.seconds)
    return (
        str(status.rank), status.group, status.doing, seconds, status.waits_for, status.moved,
    )  # fmt: skip


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s"
