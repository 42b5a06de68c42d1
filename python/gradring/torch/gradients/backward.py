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


# Asked for each gradient.
_running_node: Callable[[], Any] = torch._C._current_autograd_node  # noqa: SLF001

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
    return _running_node() is None


def leave_to_outer_backward(listener: _Listener) -> bool:
    """Have the pass that waits for the end of this one call ``listener.end_backward()`` in its end.

    It may bring no gradient of its own. A pass can only be told by what runs in it: here by what
    comes after the function in which this one has run.

    Returns:
        Whether there is such a pass; of a hook on a leaf, behind which nothing comes, it is told by
        the listener's own gradients alone.
    """
    around = _running_node()
    if around is None:
        return False
    reference = weakref.ref(listener)
    handles: list[Any] = []

    def tell(_gradients: Any) -> None:
        while handles:
            handles.pop().remove()
        target = reference()
        if target is not None:
            at_the_end_of_backward(target)

    nodes = [node for node, _ in around.next_functions if node is not None]
    handles.extend(node.register_prehook(tell) for node in nodes)
    return True


class GradientListener:
    """Tells of each gradient of a parameter, before a backward pass adds it and after.

    It stands before and behind the node that adds gradients up; behind as DistributedDataParallel
    does, so whatever hooks of the user's do to a gradient has been done, whenever they were
    registered. PyTorch gives a parameter another node where ``.data`` gets another dtype or device,
    back and forth too; a hook of the parameter's own outlives that, and follows.
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
        self._handles: list[Any] = []
        # Of the node, since the parameter must not hold that; it is ours, so nothing else has it.
        self._known = [0]
        # The parameter itself holds its node weakly.
        self._listen(torch.autograd.graph.get_gradient_edge(param).node)
        self._own = self._follow()

    def _listen(self, node: Any) -> None:
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

        for handle in self._handles:
            handle.remove()
        self._handles = [node.register_prehook(expect), node.register_hook(take)]
        self._node, self._known[0] = node, id(node)

    def _follow(self) -> Any:
        reference, known = weakref.ref(self), self._known

        def look(_gradient: Any) -> None:
            # It runs before the node's own, so these come in time for this gradient.
            node = _running_node()
            if id(node) != known[0]:
                listener = reference()
                if listener is None:
                    own.remove()
                else:
                    listener._listen(node)  # noqa: SLF001

        # No types.
        param: Any = self._param
        unserializable: Any = torch.utils.hooks.unserializable_hook
        own = param.register_hook(unserializable(look))
        return own

    def stop(self) -> None:
        """Leave the parameter alone from now on."""
        for handle in [self._own, *self._handles]:
            handle.remove()


def _queue(act: Callable[[], None]) -> None:
    # No types.
    engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001
    engine.queue_callback(act)
