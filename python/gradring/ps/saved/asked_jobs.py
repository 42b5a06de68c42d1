"""What a saver or a loader asks of the servers, and what they say came of it.

The servers' side is `gradring.ps.saved.checkpoint_jobs`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any

from gradring import errors
from gradring.errors import InternalError
from gradring.ps.saved.store_calls import Deadline

_LOOK_SECONDS = 5.0
_GRACE_SECONDS = 1.0  # Servers give up by themselves, and tell what hangs.


class AskedJobs:
    """The jobs of one save or load: servers are waited for until its deadline and no longer."""

    def __init__(self, core: Any, timeout: float, deadline: Deadline) -> None:
        """Take a compiled client and its timeout in seconds."""
        self._core = core
        self._timeout = timeout
        self._deadline = deadline

    def seconds(self) -> dict[str, float]:
        """Return what a job says of its time: what is left, and what was given."""
        return {"seconds": self._deadline.left(), "timeout": self._deadline.given}

    def cut(
        self, jobs: Sequence[str], bases: Sequence[dict[int, int]]
    ) -> tuple[int, list[int], list[dict[int, int]]]:
        """Freeze the shards, begin a job on each, and let go: number, lineages and stamps."""
        timeout_ms = self._milliseconds(self._deadline.left())
        return self._core.freeze_and_cut(jobs, bases, timeout_ms=timeout_ms)  # type: ignore[no-any-return]

    def begin_load(self, jobs: Sequence[str]) -> int:
        """Begin a job on each shard, and return the load's number."""
        return int(self._core.begin_load(jobs, self._milliseconds(self._deadline.left())))

    def do(self, action: str, staging: int) -> None:
        """Have all shards do something with a load, and wait until they have."""
        self.results(self.tell(action, staging))

    def tell(self, action: str, staging: int) -> int:
        """Have all shards do something with a load; in the second after the deadline, too."""
        timeout_ms = self._milliseconds(max(self._deadline.left(), _GRACE_SECONDS))
        return int(self._core.go_on_with_load(_job(action, staging), timeout_ms))

    def give_up_load(self, staging: int) -> None:
        """Have every server that can be reached drop what it has read, or is reading."""
        with contextlib.suppress(errors.Error):  # Who is lost has none any more.
            self._core.give_up_load(staging)

    def end_load(self, staging: int) -> None:
        """Have those drop it that were not told to take it over; one may be about to do that."""
        with contextlib.suppress(errors.Error):
            self._core.end_load(_job("abandon", staging))

    def results(self, number: int) -> list[dict[str, Any]]:
        """Wait for jobs until a second after the deadline, and return what came of them.

        Raises:
            TimedOut: A server was not done then, or has said so.
            PeerLost: One is not there any more. Any other error is what a server has said.
        """
        found = [json.loads(text) for text in self._await(number)]
        failed = [one for one in found if "error" in one]
        if not failed:
            return found
        kind: type[Exception] | None = getattr(errors, failed[0]["error"], None)
        text = "; ".join(one["text"] for one in failed)
        if kind is errors.Closed:  # There, and not here: this connection was lost to them.
            raise errors.TimedOut(f"{text}; try again")
        if kind is None or kind is errors.PeerLost or not issubclass(kind, errors.Error):
            raise InternalError(f"{failed[0]['error']}: {text}")
        raise kind(text)

    def _await(self, number: int) -> list[str]:
        """Wait for as long as it takes, but not for a server that is not there any more."""
        end = time.monotonic() + self._deadline.left() + _GRACE_SECONDS
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                return self._core.await_job(number, round(1000 * min(_LOOK_SECONDS, left)))  # type: ignore[no-any-return]
            except errors.TimedOut:
                if left <= _LOOK_SECONDS:
                    raise
                # Every server answers within the connection's timeout, or is named.
                self._core.stats(self._milliseconds(end - time.monotonic()))

    def _milliseconds(self, seconds: float) -> int:
        return max(1, round(1000 * min(self._timeout, seconds)))


def _job(action: str, staging: int) -> str:
    return json.dumps({"action": action, "staging": staging})
