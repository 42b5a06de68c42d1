"""`gradring run`: starts the ranks of a job here or on several hosts and ends them together.

The way of a start: `plan` (pure) -> `job` (the loop) -> `link` (one a host) -> `agent` (on that
host) -> the ranks. Their output comes back the same way and leaves through `output`; `outcome`
keeps how it all ended.
"""

from __future__ import annotations

import os

from gradring.launch.job import Job
from gradring.launch.output import Screen
from gradring.launch.plan import Options, make_plan

__all__ = ["Options", "run"]


def run(options: Options) -> int:
    """Run a job to its end, on the main thread.

    Returns:
        0, the exit code of the rank that failed first, or 128 + signal.

    Raises:
        InvalidArgument: An option makes no sense; nothing was started.
    """
    plan = make_plan(options, os.environ)
    return Job(plan, options, Screen.of_process(os.environ)).run()
