"""What calls are given, checked before anything is sent: numbers, names, shapes. Pure.

What the core can check better, such as how long a name may be, is left to it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from gradring.core_arguments import OwnName, is_plain_text
from gradring.errors import InvalidArgument

U32 = (1 << 32) - 1
U64 = (1 << 64) - 1


def whole(what: str, value: Any, least: int = 0, most: int = U32) -> int:
    """Return a whole number of any type: int, NumPy's, a tensor of one.

    Args:
        what: Begins the message.
        value: What was given. 2.0 is none: who divides has an error that rounding would hide.
        least: The smallest one.
        most: The largest one.

    Raises:
        InvalidArgument: It is none, or out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise InvalidArgument(
            f"{what} is a whole number from {least} to {most}, got {value!r}"
        ) from None
    return number


def real(what: str, value: Any) -> float:
    """Return a number of any type as a float.

    Raises:
        InvalidArgument: It is none.
    """
    try:
        if not isinstance(value, (str, bytes)):  # float() reads them.
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidArgument(f"{what} is a number, got {value!r}")


def table_name(value: Any) -> str:
    """Return a table's name.

    Raises:
        InvalidArgument: It is no string, holds half a character (a lone surrogate), or is one of
            the library's own.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"a table's name is a string, got {value!r}")
    if value.startswith(OwnName.PREFIX) and not isinstance(value, OwnName):
        raise InvalidArgument(
            f"table {value!r}: names that begin with {OwnName.PREFIX!r} are the library's own"
        )
    if not is_plain_text(value):
        raise InvalidArgument(f"a table's name is UTF-8 text, got {value!r}")
    return value


def shape(name: str, given: Any) -> tuple[int, ...]:
    """Return a dense table's shape.

    Args:
        name: The table's, for messages.
        given: A whole number, or a sequence of them.

    Raises:
        InvalidArgument: It is none, or an array of that shape has no place for a number.
    """
    sizes = (
        given if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else (given,)
    )
    try:
        found = tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise InvalidArgument(
            f"table {name!r}: shape is a whole number or a sequence of them, got {given!r}"
        ) from None
    if any(size < 1 for size in found):
        raise InvalidArgument(f"table {name!r}: shape {found} has no place for a number")
    whole(f"table {name!r}: the number of floats", math.prod(found), 1, U64)
    return found
