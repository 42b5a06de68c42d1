"""Workers of a job as threads: the quick way to run a mode on several of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

SECONDS = 60.0


def on_workers(size: int, function: Callable[[int], Any]) -> list[Any]:
    """Call ``function(rank)`` on a thread for each worker: the results, or the first error."""
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(rank)
        except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a worker is still waiting"
    return results
