"""Keeps torch.compile out of the backend.

A process group of torch's own is C++, which the compiler never looks into. Ours is Python, called
from C++ in the middle of compiled regions, and has nothing that could be compiled.
"""

from __future__ import annotations

import types
from typing import Any

import torch


def leave_untraced(*kinds: type) -> None:
    """Have the compiler run the methods of classes, and what they call, as they are."""
    # By the C functions behind torch.compiler.disable, which would import the whole compiler.
    frames: Any = torch._C._dynamo.eval_frame  # noqa: SLF001
    if not hasattr(frames, "set_code_exec_strategy"):  # Before torch 2.8.
        return
    skip = frames._FrameAction.SKIP  # noqa: SLF001
    for kind in kinds:
        for method in vars(kind).values():
            if isinstance(method, types.FunctionType):
                frames.set_code_exec_strategy(
                    method.__code__,
                    frames._FrameExecStrategy(skip, skip),  # noqa: SLF001
                )
