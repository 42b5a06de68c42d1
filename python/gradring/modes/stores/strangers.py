"""Connections that are no worker's to the servers, and what one is told that would train."""

from __future__ import annotations

from gradring.ps.connecting import FIRST_STRANGER


def why_no_worker(number: int) -> str | None:
    """Return why a connection is no worker's, and what to do; ``None`` where it is one's.

    Args:
        number: What servers call it.
    """
    if number < FIRST_STRANGER:
        return None
    return (
        f"servers know this connection as client {number}, which is no worker: its process was "
        "started alone and is no rank of a job, or has another connection. Start the script by "
        "`gradring run` (-n 1 where nobody else trains), or give ps=gr.ps.connect(client=R) with "
        "the worker's number R, which is 0 where nobody else trains"
    )
