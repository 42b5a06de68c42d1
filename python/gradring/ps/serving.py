"""`Serving`: a running server and the Python thread that reads and writes its checkpoints.

Used by `gradring serve` and by `connect()` for the server inside a process. The compiled server has
its own threads for the tables; this one only moves bytes between it and file systems.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gradring.errors import Error, InternalError

if TYPE_CHECKING:
    from gradring import _core

# How soon the thread hears of the end.
_LOOK_MS = 200
# What a checkpoint that is being written may still take at the end.
_LAST_JOB_SECONDS = 30.0


class Serving:
    """One server; `stop` it in the end."""

    def __init__(self, core: _core.PsServer) -> None:
        """Take over a compiled server and start to carry out its jobs."""
        self.core = core
        self._failure: Error | None = None
        self._stops = threading.Event()
        self._thread = threading.Thread(
            target=self._carry_out_jobs, name="gradring-checkpoints", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Where clients reach it: host:port."""
        return self.core.address

    def require_well(self) -> None:
        """Raise the failure that has stopped a shard, such as a log that cannot be written."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Finish the checkpoint that is being written, then end; may be called again."""
        if not self._stops.is_set():
            self._stops.set()
            self._thread.join(_LAST_JOB_SECONDS)
            self.core.stop()

    def __enter__(self) -> Serving:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        self.stop()

    def _carry_out_jobs(self) -> None:
        try:
            self._serve_jobs()
        except Error as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            # Savers would wait for ever: the server ends instead.
            self._failure = InternalError(f"{type(error).__name__}: {error}")

    def _serve_jobs(self) -> None:
        carry_out: Callable[[Any, Any], None] | None = None
        while not self._stops.is_set():
            job = self.core.next_job(_LOOK_MS)
            if job is None:
                continue
            if carry_out is None:
                from gradring.ps.saved import checkpoint_jobs

                carry_out = checkpoint_jobs.carry_out
            carry_out(self.core, job)
