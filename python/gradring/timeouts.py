"""Timeouts as users give them, checked, and as the core takes them."""

from __future__ import annotations

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
    try:
        is_possible = is_timeout(timeout)
    except (TypeError, ValueError):  # Text, or an array of several.
        is_possible = False
    if not is_possible:
        raise InvalidArgument(
            f"timeout must be positive seconds, at most {LONGEST:g}, got {timeout!r}"
        )
    return max(1, round(timeout * 1000))
