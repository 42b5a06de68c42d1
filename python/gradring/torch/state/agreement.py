"""What goes wrong on one rank of `broadcast_state` is an error on all of them, and none waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gradring.collectives.communicator import Communicator
from gradring.collectives.texts import gather_texts
from gradring.errors import InvalidArgument, Mismatch

Result = TypeVar("Result")

_LETTERS_MAX = 2000  # Of an error that is told to others: torch lists all keys of a state.


def agreed(
    comm: Communicator, doing: str, do: Callable[[], Result], timeout: float | None
) -> Result:
    """Do something on this rank, and return when all have; a collective call.

    Args:
        comm: The ranks.
        doing: What it is, for the message: "load the state".
        do: Talks to nobody.
        timeout: As for `Communicator.all_reduce`.

    Raises:
        Mismatch: Another rank could not do its part; names it. What this rank's part raises is
            raised here.
    """
    result, error = _tried(do)
    found = gather_texts(comm, _said(error).encode(), timeout=timeout)
    if error is not None:
        raise error
    for rank, text in enumerate(found):
        if text:
            raise Mismatch(
                f"broadcast_state: {comm.describe(rank)} could not {doing}: {text.decode()}"
            )
    assert result is not None
    return result[0]


def agreed_names(
    comm: Communicator, root: int, find: Callable[[], Mapping[str, bool]], timeout: float | None
) -> Mapping[str, bool]:
    """Find what is to be sent on this rank, and compare it with the others'; a collective call.

    Args:
        comm: The ranks.
        root: Who sends; compared as well.
        find: Returns the names, each with whether it is an object's; talks to nobody.
        timeout: As for `Communicator.all_reduce`.

    Raises:
        InvalidArgument: Another rank raised something in `find`; names it. What this rank raised
            there is raised here.
        Mismatch: Names, or roots, differ; names the first difference, on every rank.
    """
    result, error = _tried(find)
    names = {} if result is None else result[0]
    mine = [_said(error), str(root), {name: names[name] for name in sorted(names)}]
    texts = gather_texts(comm, json.dumps(mine).encode(), timeout=timeout)
    if error is not None:
        raise error
    told = [json.loads(text) for text in texts]
    for rank, (said, _, _) in enumerate(told):
        if said:
            raise InvalidArgument(f"broadcast_state: {comm.describe(rank)} says: {said}")
    for rank, (_, other_root, others) in enumerate(told):
        if other_root != told[0][1]:
            raise Mismatch(
                f"broadcast_state: root is {told[0][1]} on rank 0, and {other_root} on rank {rank}"
            )
        for name in sorted({*told[0][2], *others}):
            here, there = (_described(each.get(name)) for each in (told[0][2], others))
            if here != there:
                raise Mismatch(
                    f"broadcast_state: {name!r} is {here} on rank 0, and {there} on rank {rank}; "
                    "give the same names on every rank, with objects under the same ones"
                )
    return names


def _tried(do: Callable[[], Result]) -> tuple[tuple[Result] | None, Exception | None]:
    try:
        return (do(),), None
    except Exception as error:  # noqa: BLE001 - raised when the others know of it
        return None, error


def _said(error: Exception | None) -> str:
    if error is None:
        return ""
    text = f"{type(error).__name__}: {error}"
    # Half of a surrogate, say of a file's name, is no UTF-8.
    return text[:_LETTERS_MAX].encode(errors="replace").decode()


def _described(is_object: Any) -> str:
    if is_object is None:
        return "missing"
    return "an object with state_dict()" if is_object else "a plain value"
