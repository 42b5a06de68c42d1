"""Keeps torch.compile out of what has nothing that could be compiled.

A process group of torch's own is C++, which the compiler never looks into. Ours is Python, called
from C++ in the middle of compiled regions. An embedding's rows come from servers, by way of NumPy
arrays and of calls that the compiler cannot follow; it is called from Python that is compiled.
"""

from __future__ import annotations

import types
from typing import Any

import torch


def break_graphs_at(kind: type, why: str) -> None:
    """Have the compiler end a graph where a class's methods are called, and run them as they are.

    Args:
        kind: Its own methods; not those of its base classes.
        why: For whoever asks for one whole graph.
    """
    for method in _methods_of(kind):
        # What torch.compiler.disable leaves on its wrappers: it would import the whole compiler.
        vars(method).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=why)
    leave_untraced(kind)


def leave_untraced(*kinds: type) -> None:
    """Have the compiler run the methods of classes, and what they call, as they are."""
    # By the C functions behind torch.compiler.disable, which would import the whole compiler.
    frames: Any = torch._C._dynamo.eval_frame  # noqa: SLF001
    if not hasattr(frames, "set_code_exec_strategy"):  # Before torch 2.8.
        return
    skip = frames._FrameAction.SKIP  # noqa: SLF001
    for kind in kinds:
        for method in _methods_of(kind):
            frames.set_code_exec_strategy(
                method.__code__,
                frames._FrameExecStrategy(skip, skip),  # noqa: SLF001
            )


def _methods_of(kind: type) -> list[types.FunctionType]:
    return [each for each in vars(kind).values() if isinstance(each, types.FunctionType)]
