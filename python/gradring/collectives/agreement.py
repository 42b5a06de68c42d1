"""`agreed`: what goes wrong on one rank of several is an error on all of them, and none waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gradring.collectives.communicator import Communicator
from gradring.collectives.texts import gather_texts
from gradring.errors import Mismatch

Result = TypeVar("Result")

_LETTERS_MAX = 2000  # Of an error that is told to others: torch lists all keys of a state.


def agreed(
    comm: Communicator, call: str, doing: str, do: Callable[[], Result], timeout: float | None
) -> Result:
    """Do something on this rank, and return when all have; a collective call.

    Args:
        comm: The ranks.
        call: Whose part it is, for the message.
        doing: What it is, for the message: "load the state".
        do: Talks to no rank.
        timeout: As for `Communicator.all_reduce`.

    Raises:
        Mismatch: Another rank could not do its part; names it. What this rank's part raises is
            raised here.
    """
    result, error = tried(do)
    found = gather_texts(comm, said(error).encode(), timeout=timeout)
    if error is not None:
        raise error
    for rank, text in enumerate(found):
        if text:
            raise Mismatch(f"{call}: {comm.describe(rank)} could not {doing}: {text.decode()}")
    assert result is not None
    return result[0]


def tried(do: Callable[[], Result]) -> tuple[tuple[Result] | None, Exception | None]:
    """Return what a call returned, or what it raised."""
    try:
        return (do(),), None
    except Exception as error:  # noqa: BLE001 - raised when the others know of it
        return None, error


def said(error: Exception | None) -> str:
    """Return what other ranks are told of an error; empty: there is none."""
    if error is None:
        return ""
    text = f"{type(error).__name__}: {error}"
    # Half of a surrogate, say of a file's name, is no UTF-8.
    return text[:_LETTERS_MAX].encode(errors="replace").decode()
