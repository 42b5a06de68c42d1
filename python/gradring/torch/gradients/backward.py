"""What `gradring.torch` has to know about the backward pass that is running.

PyTorch's own DistributedDataParallel and checkpoints ask the engine the same questions; it has no
public names for them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch


class _Listener(Protocol):
    def end_backward(self) -> None: ...


class _Taker(Protocol):
    def expect_gradient(self, index: int) -> None: ...
    def take_gradient(self, index: int) -> None: ...


_waiting: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def at_the_end_of_backward(listener: _Listener) -> None:
    """Call ``listener.end_backward()`` when this backward pass ends; once for each pass.

    Called from a hook. What it raises comes out of ``backward()``.
    """
    task = current_backward()
    if _waiting.get(listener) == task:
        return
    _waiting[listener] = task
    reference = weakref.ref(listener)

    def end() -> None:
        target = reference()
        if target is not None:
            target.end_backward()

    _queue(end)


def after_all_others(act: Callable[[], None]) -> None:
    """Call ``act`` after the ``end_backward`` of all listeners; called from one of them."""
    _queue(act)


def current_backward() -> int:
    """Return a number that this backward pass shares with no other; for hooks and their ends."""
    task: int = torch._C._current_graph_task_id()  # noqa: SLF001
    return task


def is_outermost_backward() -> bool:
    """Tell whether no other backward pass waits for the end of this one."""
    return torch._C._current_autograd_node() is None  # noqa: SLF001


class GradientListener:
    """Tells of each gradient of a parameter, before a backward pass adds it and after.

    It stands before and behind the node that adds gradients up; behind as DistributedDataParallel
    does, so whatever hooks of the user's do to a gradient has been done, whenever they were
    registered.
    """

    def __init__(self, param: torch.Tensor, taker: _Taker, index: int) -> None:
        """Call ``taker``, on the thread that runs backward, until `stop`.

        Parameters may outlive the taker; they do not keep it alive.

        Args:
            param: A leaf that requires a gradient.
            taker: Its ``expect_gradient`` may refuse, and nothing is added then; what
                ``take_gradient`` raises comes out of ``backward()`` too.
            index: What both are called with.
        """
        self._param = param
        self._index = index
        self._taker = weakref.ref(taker)
        self._listen()

    def _listen(self) -> None:
        reference, index = self._taker, self._index

        # A function may give no gradient: then nothing is added.
        def expect(gradients: Any) -> None:
            taker = reference()
            if taker is not None and gradients[0] is not None:
                taker.expect_gradient(index)

        def take(_inputs: Any, gradients: Any) -> None:
            taker = reference()
            if taker is not None and gradients[0] is not None:
                taker.take_gradient(index)

        # The parameter itself holds its node weakly.
        self._node: Any = torch.autograd.graph.get_gradient_edge(self._param).node
        self._handles = [self._node.register_prehook(expect), self._node.register_hook(take)]
        self._address = self._param.data_ptr()
        self._storage = self._param.untyped_storage()  # So that nothing else gets its address.

    def follow(self) -> None:
        """Listen where PyTorch has given the parameter another node.

        It does so where ``.data`` gets another dtype or device, back and forth too.
        """
        if self._param.data_ptr() != self._address and self._param.requires_grad:
            self.stop()
            self._listen()

    def stop(self) -> None:
        """Leave the parameter alone from now on."""
        for handle in self._handles:
            handle.remove()


def _queue(act: Callable[[], None]) -> None:
    # No types.
    engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001
    engine.queue_callback(act)
