"""Reminds whoever ends a program without `close` of what servers lack.

Used from the threads that make and close optimizers.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import weakref
from typing import Protocol

from gradring.modes.stepping import measured


class Closable(Protocol):
    """An optimizer.

    Attributes:
        name: The user's.
        is_closed: Nothing is to be said.
    """

    name: str
    is_closed: bool

    def left_behind(self) -> str:
        """Say what servers would lack if the process ended now; empty: nothing."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()

# What those that no user has made are called, and how they are ended.
_described: weakref.WeakKeyDictionary[Closable, tuple[str, str]] = weakref.WeakKeyDictionary()


def begin(optimizer: Closable) -> None:
    """Remind of this one, unless it is closed or gone by then."""
    _open.add(optimizer)
    _register()


def describe(optimizer: Closable, who: str, ending: str) -> None:
    """Say what the user has instead of this optimizer, and what to do with that in the end."""
    _described[optimizer] = who, ending


def end(optimizer: Closable) -> None:
    """Remind of it no more."""
    _open.discard(optimizer)


@functools.cache
def _register() -> None:
    # Not before there is an optimizer: what is registered last runs first, and connections, which
    # were made before it, must not be closed yet.
    atexit.register(_tell_what_is_left)
    measured.begin(_open)


def _tell_what_is_left() -> None:
    if hasattr(sys, "last_value"):
        return  # The program failed: there is worse to read.
    for optimizer in _open:
        if not optimizer.is_closed and (left := optimizer.left_behind()):
            who, ending = _described.get(
                optimizer,
                (f"optimizer {optimizer.name!r}", "call its close(), or use it in a with block"),
            )
            print(
                f"gradring: {who} was not closed, and the servers may lack {left}: in the end "
                f"{ending}",
                file=sys.stderr,
            )


# What a forked child inherits is its parent's to close.
os.register_at_fork(after_in_child=_open.clear)
