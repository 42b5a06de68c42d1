"""The JSON files that measurements go into, row by row, so that a run can be resumed."""

from __future__ import annotations

import datetime as dt
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def load(path: Path) -> Document | None:
    """Return what a file holds; None where there is none."""
    if not path.exists():
        return None
    document: Document = json.loads(path.read_text())
    return document


def save(path: Path, document: Document) -> None:
    """Replace a file at once, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    part.replace(path)


def asked_command() -> str:
    """Return the command line without folders, which are this machine's."""
    words = iter(sys.argv[1:])
    kept = ["python", "bench/compare"]
    for word in words:
        if word in ("--environments", "--json"):
            next(words, None)
        elif not word.startswith(("--environments=", "--json=")):
            kept.append(word)
    return shlex.join(kept)


def stamp() -> Document:
    """Say how, when and at which state of the code a row was measured, and how busy all was."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        ended = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=20)
        commit = ended.stdout.strip() or "unknown"
    except OSError:
        commit = "unknown"
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    load = round(os.getloadavg()[0], 2)
    return {"command": asked_command(), "commit": commit, "date": now, "load": load}


def keep_rows(document: Document, old: Document, todo: Mapping[str, Sequence[int]]) -> None:
    """Take over a document's rows, for those that are not to be measured again.

    Each says what holds for it and not for the new ones: command, processor, versions.
    """
    document["operations"] = old["operations"]
    kept = [(found["op"], row) for found in old["operations"] for row in found["rows"]
            if row["bytes"] not in todo.get(found["op"], ())]  # fmt: skip
    for _, row in kept:
        known = row["measured"]
        known.setdefault("command", old["command"])
        known.setdefault("cpu", old["machine"]["cpu"])
        known.setdefault("libraries", old.get("environments", {}))
    if kept:
        document["command"] = old["command"]


def rows_of(document: Document, op: str) -> list[Document]:
    """Return an operation's rows in a document of collectives, for reading and adding."""
    for operation in document["operations"]:
        if operation["op"] == op:
            rows: list[Document] = operation["rows"]
            return rows
    document["operations"].append({"op": op, "rows": []})
    return rows_of(document, op)


def put_row(document: Document, op: str, row: Document) -> None:
    """Add a row, in place of one of the same size."""
    rows = rows_of(document, op)
    rows[:] = sorted(
        [*(one for one in rows if one["bytes"] != row["bytes"]), row], key=lambda one: one["bytes"]
    )


def has_row(document: Document, op: str, size: int) -> bool:
    """Whether a row of this size is there."""
    return any(row["bytes"] == size for row in rows_of(document, op))
