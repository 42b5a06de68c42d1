"""The rooms of csrc/, and which of them may include which; test_house.py asks here.

A room is a folder. One within another may do what the outer one may, and what stands behind it.
"""

from __future__ import annotations

from pathlib import Path

from source_tree import includes

ARROWS = {
    "bind": {"collectives", "ps", "kernels", "gpu", "transport", "base"},
    "bind/gpu": {"bind"},
    "bind/ps": {"bind"},
    "ps": {"transport", "wire", "kernels", "base"},
    "ps/server": {"ps/log", "ps/shard", "ps/protocol"},
    "ps/log": {"ps/shard", "ps/tables"},
    "ps/shard": {"ps/protocol", "ps/tables"},
    "ps/client": {"ps/protocol", "ps/tables"},
    "ps/protocol": {"ps/tables"},
    "ps/tables": set[str](),
    "collectives": {"transport", "kernels", "base"},
    "collectives/device": {
        "collectives/communicator",
        "collectives/engine",
        "collectives/plan",
        "gpu",
    },
    "collectives/communicator": {"collectives/engine", "collectives/records"},
    "collectives/engine": {"collectives/flat", "collectives/plan"},
    "collectives/flat": {"collectives/plan"},
    "collectives/records": {"collectives/plan"},
    "collectives/plan": set[str](),
    "transport": {"wire", "base", "transport/membership", "transport/joining", "transport/links"},
    "transport/membership": {"transport/joining", "transport/links"},
    "transport/joining": {"transport/links"},
    "transport/links": set[str](),
    "cuda": {"gpu", "kernels"},  # The plugin: compiled for itself.
    "gpu": {"base"},
    "kernels": {"base"},
    "wire": {"base"},
    "base": set[str](),
}
# Single headers that a room may include besides its arrows, each with the reason.
EXTRA_HEADERS = {
    ("collectives", "wire/op_header.h"): "an operation's first bytes say which call it belongs to",
}


def room_of(path: Path) -> str:
    """The folder of a file under csrc/, as ARROWS names it."""
    return path.parent.relative_to("csrc").as_posix()


def arrow_complaints(room: str, text: str) -> list[str]:
    """Includes of `text`, a file of `room`, that the diagram does not allow."""
    top = room.split("/", maxsplit=1)[0]
    allowed = {room} | ARROWS[room] | {target for target in ARROWS[top] if "/" not in target}
    return [
        f"{room} may not include {header}"
        for header in includes(text)
        if (target := header.rpartition("/")[0]) not in allowed
        and ((outer := target.split("/")[0]) == top or outer not in allowed)
        and (top, header) not in EXTRA_HEADERS
    ]
