"""What one row of a document says about us and the best peer, for the table and the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compare import records
from compare.records import Document

OURS = "gradring"


def documents(folder: Path, *transports: str) -> list[Document]:
    """Return the documents of collectives in a folder, by transport and number of ranks.

    Not what was measured before a change and is kept beside them (``shm-2-before.json``).
    """
    known = []
    for path in (path for name in transports for path in folder.glob(f"{name}-*.json")):
        document = None if path.stem.endswith("-before") else records.load(path)
        if document is not None and any(each["rows"] for each in document["operations"]):
            known.append({**document, "name": path.stem})
    return sorted(known, key=lambda one: (transports.index(one["transport"]), *_order(one)))


def _order(document: Document) -> tuple[int, str]:
    return document["world_size"], control(document)


def control(document: Document) -> str:
    """Return the congestion control that peers' sockets had."""
    name: str = document["machine"]["tcp_congestion_control"]
    return name


def right_results(row: Document) -> Document:
    """Return the results of those who had it right, by name."""
    return {name: result for name, result in row["results"].items() if not result["wrong"]}


def best_peer(row: Document) -> tuple[str, float] | None:
    """Return the peer that is furthest ahead of us, or least behind, and its time over ours.

    Each peer's is the median of its rounds' ratios. None where nobody, or not we, had it right.
    """
    right = right_results(row)
    ratios = {
        name: float(ratio["median"]) for name, ratio in row["ratios"].items() if name in right
    }
    if not ratios or OURS not in right:
        return None
    name = min(ratios, key=lambda one: ratios[one])
    return name, ratios[name]


def losses(document: Document) -> Iterator[tuple[str, Document, str, Document]]:
    """Yield operation, row, peer and ratio wherever a peer won more than half of the rounds."""
    for operation in document["operations"]:
        for row in operation["rows"]:
            for name, ratio in row["ratios"].items():
                if ratio["won"] < 0.5:
                    yield operation["op"], row, name, ratio
