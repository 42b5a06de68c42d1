"""The backend "gradring" of torch.distributed: process groups over `gradring.Communicator`.

``import gradring.torch`` registers it; nothing here is loaded before a group is made. `operations`
has what torch.distributed calls, `calls` how one call runs. What is supported, and how it differs
from Gloo, is in docs/torch.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradring.errors import InvalidArgument

if TYPE_CHECKING:
    from gradring.torch.c10d.process_group import ProcessGroup

BACKEND = "gradring"

# The oldest whose own layers wait rightly for a process group written in Python: under 2.4
# DistributedDataParallel waited for ever for its first all_gather, past every timeout of ours.
OLDEST = (2, 11)


def register() -> None:
    """Make ``init_process_group("gradring")`` and ``new_group(backend="gradring")`` work.

    And ``init_method="gradring://"``, whatever the backend.
    """
    if not dist.is_available():
        return
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    torch_as_it_is: Any = dist  # Its stubs leave this out.
    torch_as_it_is.register_rendezvous_handler(BACKEND, _meet)


def _create(options: Any, _backend_options: Any) -> ProcessGroup:
    _require_new_enough(torch.__version__)
    from gradring.torch.c10d.creation import create

    return create(options)


def _meet(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
    from gradring.torch.c10d.init_method import meet

    return meet(url, **options)


def _require_new_enough(version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < OLDEST:
        raise InvalidArgument(
            f"the backend {BACKEND!r} needs torch {OLDEST[0]}.{OLDEST[1]} or newer, this is "
            f"{version}; gradring.torch.distributed(optimizer) works with it"
        )
