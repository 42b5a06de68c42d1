"""Keeps the one handle of which torch keeps only the C++ half.

Inside of ``join(divide_by_initial_world_size=False)`` DistributedDataParallel gives the handle by
which ranks count each other to its C++, and backward waits for it there. The Python half goes when
nobody holds it, and with it our ``wait``: torch's own would wait for ever.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch.distributed.algorithms.join import Join

from gradring.torch.c10d.untraced import leave_untraced


class JoinNotice:
    """`Join.notify_join_context`, whose last handle lives as long as the one it was made for."""

    def __init__(self, notify: Any) -> None:
        """Stand in front of torch's own."""
        self._notify = notify
        self._kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __call__(self, joinable: Any) -> Any:
        """Tell ranks that have run out of inputs that this one has not, and keep the handle."""
        work = self._notify(joinable)
        if work is not None:
            self._kept[joinable] = work  # The one before has been waited for, or is of no use.
        return work


def keep_join_handles() -> None:
    """Stand in front of torch's function; once."""
    notify: Any = Join.notify_join_context
    if not isinstance(notify, JoinNotice):
        Join.notify_join_context = JoinNotice(notify)  # type: ignore[method-assign]


leave_untraced(JoinNotice)
