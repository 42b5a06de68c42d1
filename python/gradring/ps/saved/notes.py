"""Notes of a checkpoint: plain values of a script's, which its manifest keeps. Pure."""

from __future__ import annotations

import json
from typing import Any

from gradring.errors import InvalidArgument

MOST_BYTES = 1 << 20  # Of their JSON: every loader reads the manifest whole.
_MOST_DEPTH = 64  # Far less than what Python's parser can read again.
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1
_PLAIN = "None, True, False, numbers, strings, lists, and dicts with strings as keys"


def checked(notes: Any) -> dict[str, Any]:
    """Return a copy of what was given as notes; ``None`` are none.

    Only values that come back as they are: no tuples, which JSON makes lists. Infinities and nan
    do, as schedulers have them.

    Raises:
        InvalidArgument: They are no dict of plain JSON values; names the first that is none. Or
            their JSON has more than `MOST_BYTES`.
    """
    if notes is None:
        return {}
    if type(notes) is not dict:
        raise InvalidArgument(f"notes is a {_kind(notes)}; give a dict, such as {{'epoch': 3}}")
    _Looking().look(notes, ())
    text = json.dumps(notes)
    if len(text) > MOST_BYTES:
        raise _too_long(f"{len(text)} bytes")
    copy: dict[str, Any] = json.loads(text)
    return copy


class _Looking:
    """Goes through all values; ends with more than would fit, as lists in lists may be endless."""

    def __init__(self) -> None:
        self._left = MOST_BYTES

    def look(self, value: Any, place: tuple[Any, ...]) -> None:
        self._left -= 1
        if self._left < 0:
            raise _too_long("more")
        if len(place) > _MOST_DEPTH:
            raise InvalidArgument(
                f"{_written(place[:3])}... has a value inside of more than {_MOST_DEPTH} others"
            )
        if type(value) is dict:
            for key, each in value.items():
                if type(key) is not str:
                    raise InvalidArgument(
                        f"{_written(place)} has {key!r} as a key, a {_kind(key)}, which would come "
                        "back as a string; give str(key)"
                    )
                self.look(each, (*place, key))
        elif type(value) is list:
            for index, each in enumerate(value):
                self.look(each, (*place, index))
        elif type(value) is int and not _SMALLEST <= value <= _LARGEST:
            raise InvalidArgument(f"{_written(place)} is a whole number of more than 64 bits")
        elif value is not None and type(value) not in (bool, int, float, str):
            raise InvalidArgument(
                f"{_written(place)} is a {_kind(value)}; notes are plain JSON values: {_PLAIN}. Of "
                "a tensor or an array give .tolist(), of a tuple list(...)"
            )


def _written(place: tuple[Any, ...]) -> str:
    return "notes" + "".join(f"[{part!r}]" for part in place)


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _too_long(found: str) -> InvalidArgument:
    return InvalidArgument(
        f"notes are at most {MOST_BYTES} bytes of JSON, and these are {found}: they are for an "
        "epoch, a scheduler's state or a position; save what is larger in a file of its own"
    )
