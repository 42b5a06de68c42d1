"""Timeouts as users give them, checked, and as the core takes them."""

from __future__ import annotations

import math
from typing import Any

from gradring.errors import InvalidArgument

# Clocks count nanoseconds in 64 bits: beyond this a deadline would not fit.
LONGEST = 1e9


def is_timeout(seconds: float) -> bool:
    """Tell whether a number can be waited for: above 0, and finite."""
    return 0 < seconds <= LONGEST


def milliseconds(timeout: float | None) -> int:
    """Return a timeout as the core takes it; -1 is the communicator's own.

    Args:
        timeout: Seconds; ``None``: the communicator's.

    Raises:
        InvalidArgument: It is no number, not positive, or longer than 10^9 seconds.
    """
    if timeout is None:
        return -1
    given: Any = timeout
    try:
        seconds = math.nan if isinstance(given, (str, bytes)) else float(given)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # An array of several, say.
        seconds = math.nan
    if not is_timeout(seconds):
        raise InvalidArgument(
            f"timeout must be positive seconds, at most {LONGEST:g}, got {timeout!r}"
        )
    return max(1, round(seconds * 1000))
