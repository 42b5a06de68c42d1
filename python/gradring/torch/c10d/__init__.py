"""The backend "gradring" of torch.distributed: process groups over `gradring.Communicator`.

``import gradring.torch`` registers it; nothing here is loaded before a group is made. What is
supported, and how it differs from Gloo, is in docs/torch.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from gradring.torch.c10d.process_group import ProcessGroup

BACKEND = "gradring"


def register() -> None:
    """Make ``init_process_group("gradring")`` and ``new_group(backend="gradring")`` work."""
    if not dist.is_available():
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, _backend_options: Any) -> ProcessGroup:
    from gradring.torch.c10d.creation import create

    return create(options)
