"""Texts of all ranks: whether they are the same, and what each of them is."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np

from gradring.collectives.exchanges import Exchanges


def digest(text: str) -> int:
    """Return 64 bits that stand for a text; another one has others, but for chance."""
    found = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(found, "little", signed=True)


def gather_texts(comm: Exchanges, mine: bytes, *, timeout: float | None = None) -> list[bytes]:
    """Return every rank's text, by rank; all ranks call it at once, with texts of any length."""
    lengths = comm.all_gather(np.array([len(mine)], np.int64), timeout=timeout)
    counts = [int(length) for length in lengths.reshape(-1)]
    if not any(counts):
        return [b""] * len(counts)
    sent = np.frombuffer(mine, np.uint8)
    data = comm.all_gather(sent, counts=counts, timeout=timeout).tobytes()
    ends = itertools.accumulate(counts)
    return [data[end - count : end] for end, count in zip(ends, counts, strict=True)]
