"""What one row of a document says about us and the best peer, for the table and the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compare import records
from compare.records import Document

OURS = "gradring"


def documents(folder: Path, *transports: str) -> list[Document]:
    """Return the documents of collectives in a folder, by transport and number of ranks."""
    known = []
    for path in (path for name in transports for path in folder.glob(f"{name}-*.json")):
        document = records.load(path)
        if document is not None and any(each["rows"] for each in document["operations"]):
            known.append({**document, "name": path.stem})
    return sorted(known, key=lambda one: (transports.index(one["transport"]), *_order(one)))


def _order(document: Document) -> tuple[int, str]:
    return document["world_size"], control(document)


def control(document: Document) -> str:
    """Return the congestion control that peers' sockets had."""
    name: str = document["machine"]["tcp_congestion_control"]
    return name


def best_peer(row: Document) -> tuple[str, float] | None:
    """Return the peer with the least time, and its time over ours: the median of the rounds."""
    right = [name for name in row["ratios"] if not row["results"][name]["wrong"]]
    if not right:
        return None
    name = min(right, key=lambda one: float(row["results"][one]["time_us"]))
    return name, float(row["ratios"][name]["median"])


def losses(document: Document) -> Iterator[tuple[str, Document, str, Document]]:
    """Yield operation, row, peer and ratio wherever a peer won more than half of the rounds."""
    for operation in document["operations"]:
        for row in operation["rows"]:
            for name, ratio in row["ratios"].items():
                if ratio["won"] < 0.5:
                    yield operation["op"], row, name, ratio
