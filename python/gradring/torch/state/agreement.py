"""What the ranks of `broadcast_state` are to send is compared before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gradring.collectives.agreement import said, tried
from gradring.collectives.communicator import Communicator
from gradring.collectives.texts import gather_texts
from gradring.errors import InvalidArgument, Mismatch


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
    result, error = tried(find)
    names = {} if result is None else result[0]
    mine = [said(error), str(root), {name: names[name] for name in sorted(names)}]
    texts = gather_texts(comm, json.dumps(mine).encode(), timeout=timeout)
    if error is not None:
        raise error
    told = [json.loads(text) for text in texts]
    for rank, (error_text, _, _) in enumerate(told):
        if error_text:
            raise InvalidArgument(f"broadcast_state: {comm.describe(rank)} says: {error_text}")
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


def _described(is_object: Any) -> str:
    if is_object is None:
        return "missing"
    return "an object with state_dict()" if is_object else "a plain value"
