"""`wait_for_all`: a gate of GEO's workers, and who has not come to it, in GEO's own words."""

from __future__ import annotations

import contextlib
import time

from gradring.errors import Error, TimedOut
from gradring.modes.stores.store import Gate, Store

_WHOLE_FROM = 10  # s. Tenths of as many or more say nothing.


def wait_for_all(store: Store, gate: Gate, what: str, what_next: str) -> None:
    """Wait until all living workers have come.

    Args:
        store: The servers.
        gate: What to wait for.
        what: What those who are late have not done.
        what_next: What the caller's user may do then.

    Raises:
        TimedOut: Some have not; says who. Or servers did not answer.
        PeerLost: Of a round: a worker was lost or left; says which.
    """
    begin = time.monotonic()
    try:
        store.wait(gate)
    except TimedOut as error:
        late: list[int] = []
        with contextlib.suppress(Error):  # Then servers are to be named, as they are.
            late = _late(store, gate)
        if not late:
            raise
        who = f"worker{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}"
        have = "have" if len(late) > 1 else "has"
        seconds = time.monotonic() - begin
        took = f"{round(seconds, 1 if seconds < _WHOLE_FROM else None):g}"
        raise TimedOut(f"{who} {have} not {what} after {took} s. {what_next}") from error


def _late(store: Store, gate: Gate) -> list[int]:
    clocks = store.clocks(gate.domain)
    expected = clocks.living.keys() | (set(range(gate.domain.workers)) - clocks.gone.keys())
    return sorted(rank for rank in expected if clocks.living.get(rank, 0) < gate.clock)
