"""Brings gradring's exceptions out of compiled programs, where JAX turns them into its own."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Iterator

import jax

# Several threads may meet some at a time; more than a few at once nobody will ask for.
_met: deque[BaseException] = deque(maxlen=16)


def remember(error: BaseException) -> None:
    """Keep what a collective has raised inside a compiled program, for `own_errors`."""
    _met.append(_copied(error))


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raise gradring's own exceptions where JAX raises a JaxRuntimeError in their place.

    Around calls of compiled functions with collectives in them, and around what waits for their
    results, as JAX may raise only there. Also a decorator: ``@own_errors()``. After such an error
    this thread can call compiled functions with collectives again.

    Raises:
        PeerLost: A collective in the program met it, and so for every other error; its
            ``__cause__`` is JAX's exception.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        found = _behind(error)
        if found is None:
            raise
        _forget_failed_program()
        raise _copied(found) from error


def wait_for_programs() -> None:
    """Wait until the collectives of the programs that this thread has begun are done.

    Raises:
        PeerLost: As `own_errors`, and so for every other error.
    """
    with own_errors():
        jax.effects_barrier()


def _copied(error: BaseException) -> BaseException:
    # Without its traceback, which holds on to the program's memory.
    try:
        return copy.copy(error)
    except TypeError:  # A class of the user's, as signal handlers may raise.
        return error


def _behind(error: BaseException) -> BaseException | None:
    text = str(error)
    for met in reversed(_met):
        said = f"{type(met).__name__}: {met}".removesuffix(": ")
        if said in text:
            return met
    return None


def _forget_failed_program() -> None:
    # JAX orders a thread's programs by a token, and that of a failed one fails all that follow. It
    # has no public way to begin again; where the one taken here is gone, another thread can.
    try:
        jax.effects_barrier()
    except jax.errors.JaxRuntimeError:
        with contextlib.suppress(ImportError, AttributeError):
            from jax._src import dispatch

            dispatch.runtime_tokens.clear()
