"""What torch's profiler shows of us: named ranges, "gradring::all_reduce" say, where one runs.

Where none does, a call costs a look at a flag.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.autograd import profiler

_NOTHING = contextlib.nullcontext()


def is_profiled() -> bool:
    """Tell whether a profiler of torch's runs in this process."""
    return profiler._is_profiler_enabled  # noqa: SLF001


def shown(name: str) -> contextlib.AbstractContextManager[Any]:
    """Have the profiler show a block as ``gradring::name``."""
    return range_of(name) if is_profiled() else _NOTHING


def range_of(name: str) -> Any:
    """Make a range of that name, to be entered and left; for `is_profiled`."""
    return profiler.record_function(f"gradring::{name}")


def leave_with(shown_range: Any, future: torch.futures.Future[Any]) -> None:
    """Let a range that was entered end when a future is done, on whatever thread."""
    shown_range._call_end_callbacks_on_future(future)  # noqa: SLF001
