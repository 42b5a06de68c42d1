"""How a command ends from outside: by a signal, or because its standard output leads nowhere.

Signals become exceptions, so that what a command has started and made is cleared away.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

# What a write to standard output may fail with, beside a reader that left.
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


class Ended(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        """Keep which."""
        super().__init__(number)
        self.number = number


class Interrupts:
    """Whether Ctrl-C came, whatever became of its `KeyboardInterrupt`."""

    have_come = False

    def raise_one(self, _number: int, _frame: FrameType | None) -> None:
        """Note it: what is being imported (NumPy) may make an error of its own out of this."""
        self.have_come = True
        raise KeyboardInterrupt


@contextlib.contextmanager
def ended_by_signals() -> Iterator[Interrupts]:
    """Turn SIGTERM and SIGHUP into `Ended`, and SIGINT into `KeyboardInterrupt`.

    One that is ignored (nohup) stays so. Yields what notes that SIGINT came.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.getsignal(signal.SIGINT)
    is_heard = before in (signal.SIG_DFL, signal.default_int_handler)
    if is_heard:
        signal.signal(signal.SIGINT, interrupts.raise_one)
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]

    def end(number: int, _frame: FrameType | None) -> None:
        for other in numbers:  # Once is enough; what is cleared away now should be.
            signal.signal(other, signal.SIG_IGN)
        raise Ended(number)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield interrupts
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        if is_heard:
            signal.signal(signal.SIGINT, before)


def prepare_streams() -> None:
    """Have all three standard streams, and let the output show names of any bytes."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    # Where a stream was closed Python has none.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Lead standard output nowhere, so that what is left in its buffer fails no more."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def is_unwritable(error: OSError) -> bool:
    """Tell whether an error says that standard output, or a file, takes no more."""
    return error.filename is None and error.errno in _UNWRITABLE
