"""Names of the optimizers that are open: tables and rounds of two with one name would be one's.

Used from the threads that make optimizers.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, Protocol

from gradring.errors import InvalidArgument


class Named(Protocol):
    """An optimizer.

    Attributes:
        name: First part of the names of its tables.
        store: Where they are.
        is_closed: Its name may be given again.
        uses_name: There is something on the servers that it trains by and that has its name.
    """

    name: str
    store: Any
    is_closed: bool
    uses_name: bool


_known: weakref.WeakSet[Named] = weakref.WeakSet()
_lock = threading.RLock()  # A signal handler may come in between.


def require_name(name: Any) -> None:
    """Raise `InvalidArgument` where a name is no string, or empty."""
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"name must be a string with something in it, got {name!r}")


def require_free(optimizer: Named) -> None:
    """Refuse a name that an open optimizer over the same connection has.

    Args:
        optimizer: That is being made.

    Raises:
        InvalidArgument: One has; says what to do. Or the name is none.
    """
    require_name(optimizer.name)
    if _is_taken_from(optimizer):
        gc.collect()  # One that nobody can close any more has no name.
        if _is_taken_from(optimizer):
            given = optimizer.name.removesuffix("/rows")
            raise InvalidArgument(
                f"an optimizer of this process with name={given!r} is open, and a second one would "
                "train its tables: give each its own, distributed(..., name=...), or close() the "
                "first one before"
            )


def take(optimizer: Named) -> None:
    """Keep its name from others until it is closed or gone."""
    if optimizer.uses_name:
        with _lock:
            _known.add(optimizer)


def _is_taken_from(optimizer: Named) -> bool:
    with _lock:
        return optimizer.uses_name and any(
            not other.is_closed
            and other.name == optimizer.name
            and _connection(other.store) is _connection(optimizer.store)
            for other in _known
        )


def _connection(store: Any) -> Any:
    return getattr(store, "connection", store)
