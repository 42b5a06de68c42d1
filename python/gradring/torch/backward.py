"""What `gradring.torch` has to know about the backward pass that is running.

PyTorch's own DistributedDataParallel and checkpoints ask the engine the same questions; it has no
public names for them.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch


class _Listener(Protocol):
    def end_backward(self) -> None: ...


_waiting: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def at_the_end_of_backward(listener: _Listener) -> None:
    """Call ``listener.end_backward()`` when this backward pass ends; once for each pass.

    Called from a hook. What it raises comes out of ``backward()``.
    """
    task = torch._C._current_graph_task_id()  # noqa: SLF001
    if _waiting.get(listener) == task:
        return
    _waiting[listener] = task
    reference = weakref.ref(listener)

    def end() -> None:
        target = reference()
        if target is not None:
            target.end_backward()

    # No types.
    engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001
    engine.queue_callback(end)


def is_outermost_backward() -> bool:
    """Tell whether no other backward pass waits for the end of this one."""
    return torch._C._current_autograd_node() is None  # noqa: SLF001
