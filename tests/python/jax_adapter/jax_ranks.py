"""Functions of test files on ranks that have JAX (the fixture `jax_job`), by what they are called.

JAX starts threads with its first array and warns at every fork from then on, so pytest's own
process makes none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rank_job import Job, Outcome, RankProcess


def run(job: Job, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call ``function(comm, *arguments)`` on every rank; what each returned, as plain values."""
    return job.call(_code(function, arguments))


def endings(
    job: Job, function: Callable[..., Any], *arguments: Any, ranks: list[RankProcess]
) -> list[Outcome]:
    """Call it on every rank, and return how it ended on these."""
    job.begin(_code(function, arguments))
    return job.outcomes(ranks)


def _code(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    folder = Path(sys.modules[function.__module__].__file__ or "").parent
    given = "".join(f", {argument!r}" for argument in arguments)
    return (
        f"sys.path.insert(0, {str(folder)!r})\n"
        f"from {function.__module__} import {function.__name__}\n"
        f"result = {function.__name__}(comm{given})"
    )
