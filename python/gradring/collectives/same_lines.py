"""Finds out whether all ranks were told the same, and if not what the first difference is.

What a rank was told is lines of text. Their digest is compared; the lines themselves travel only
where ranks differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from gradring.collectives.communicator import Communicator
from gradring.collectives.texts import digest, gather_texts
from gradring.errors import Mismatch

# Squares of twice so many bits, of 2^14 ranks, add up to less than 2^53: exactly in a float64.
_MARK_BITS = 19


class Mark:
    """Lines, and numbers whose sums over all ranks tell whether everybody has the same ones.

    They travel with what is added up anyway. Of half a million differences one is not seen.

    Attributes:
        lines: What this rank was told.
        columns: The numbers: a digest of few bits, and its square.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        """Make them."""
        self.lines = lines
        number = digest_of(lines) % (1 << _MARK_BITS)
        self.columns = (float(number), float(number * number))

    def require_everybodys(self, sums: Sequence[float], comm: Communicator, advice: str) -> None:
        """Look at the sums of all ranks' columns; a collective call where they differ.

        Args:
            sums: The same on every rank.
            comm: The ranks.
            advice: As for `require_same_lines`.

        Raises:
            Mismatch: As `require_same_lines`.
        """
        total, of_squares = map(int, sums)
        # Numbers are all the same where their squares add up to no more than they must.
        if comm.world_size * of_squares != total * total:
            raise_difference(comm, self.lines, advice)


def number_text(number: float) -> str:
    """Return a number for a line: as it is in float32.

    Schedules of different hosts, whose cosines differ in the last bit, or of a tensor of one
    number have the same text so.
    """
    with np.errstate(over="ignore"):
        return str(np.float32(number))


def digest_of(lines: Sequence[str]) -> int:
    """Return 64 bits that stand for the lines; others have others, but for chance."""
    return digest("\n".join(lines))


def require_same_lines(comm: Communicator, lines: Sequence[str], advice: str) -> None:
    """Compare lines with those of all other ranks; a collective call.

    Args:
        comm: The ranks.
        lines: What this rank was told, each in a line of its own.
        advice: What to do where they differ, for the message.

    Raises:
        Mismatch: Ranks differ; names the first difference, on every rank. ``comm`` stays usable.
    """
    digests = comm.all_gather(np.array([digest_of(lines)], np.int64))
    if not (digests == digests[0]).all():
        raise_difference(comm, lines, advice)


def raise_difference(comm: Communicator, lines: Sequence[str], advice: str) -> NoReturn:
    """Tell how lines differ, once every rank has found that they do; a collective call.

    Raises:
        Mismatch: Names the first difference between rank 0 and the first rank that differs; or
            says that there is none, so that it was what stood for the lines that differed.
    """
    found = gather_texts(comm, "\n".join(lines).encode())
    texts = [text.decode().split("\n") for text in found]
    other = next((rank for rank, each in enumerate(texts) if each != texts[0]), None)
    if other is None:
        raise Mismatch(
            "the numbers by which ranks compare what they were told differ, but all were told the "
            f"same: {', '.join(texts[0])}; run one version of gradring on all ranks"
        )
    here, there = next(
        pair
        for pair in itertools.zip_longest(texts[0], texts[other], fillvalue="nothing more")
        if pair[0] != pair[1]
    )
    raise Mismatch(
        f"the ranks would step differently: rank 0 has {here}, and rank {other} has {there}; "
        f"{advice}"
    )
