"""`agree`: the ranks tell each other what GPUs they have and choose how arrays there travel."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradring import _core
from gradring.errors import DeviceError, InvalidArgument
from gradring.gpu.runtime import device_count, device_facts
from gradring.machine import nccl

if TYPE_CHECKING:
    from gradring.collectives.communicator import Communicator

PATHS = {"auto": 0, "nccl": 1, "staged": 2, "nccl_in_hosts": 3}
_ROOM = 1024  # Bytes that each rank's facts may take.
_NAME_ROOM = 200  # Of them for the host's name.


@dataclass(frozen=True)
class Choice:
    """What the ranks have agreed on.

    Attributes:
        path: ``nccl staged nccl_in_hosts``.
        reason: Why.
        device: This rank's; ``None``: it has no GPU.
        hosts: By rank, the number of its host.
    """

    path: str
    reason: str
    device: int | None
    hosts: list[int]


def agree(comm: Communicator, device: int | None, path: str, timeout: float | None) -> Choice:
    """Choose alike on every rank; a collective call.

    Args:
        comm: The ranks.
        device: This rank's; ``None``: by its number on the host, none where there is no GPU.
        path: ``auto nccl staged nccl_in_hosts``.
        timeout: As for `Communicator.all_reduce`.

    Raises:
        InvalidArgument: There is no such way.
        DeviceError: It cannot be had, or a rank has not the device it was told; says which rank is
            the reason, on every rank.
    """
    if path not in list(PATHS):  # Of a dict it would raise where it is a list.
        raise InvalidArgument(f"path '{path}' is none of {', '.join(PATHS)}")
    own = device if device is not None else _usual_device(comm.local_rank)
    facts: list[Any] | str
    try:
        facts = _facts(own)
    except DeviceError as error:
        facts = _shortened(str(error), _ROOM)  # The others wait, and hear it too.
    text = _as_json(facts)
    mine = np.zeros(_ROOM, np.uint8)
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    gathered = comm.all_gather(mine, timeout=timeout)
    every = [json.loads(bytes(row).rstrip(b"\0")) for row in gathered]
    for rank, told in enumerate(every):
        if isinstance(told, str):
            raise DeviceError(f"rank {rank}: {told}")
    chosen, reason = _core.choose_gpu_path([tuple(facts) for facts in every], PATHS[path])
    names = list(dict.fromkeys(facts[1] for facts in every))
    return Choice(chosen, reason, own, [names.index(facts[1]) for facts in every])


def _usual_device(local_rank: int) -> int | None:
    try:
        count = device_count()
    except DeviceError:
        return None
    return local_rank % count if count else None


def _facts(device: int | None) -> list[Any]:
    host = _host()
    if device is None:
        return [-1, host, "", 0, "no GPU"]
    bus_id = device_facts(device)["bus_id"]
    try:
        version, _ = nccl.find()
    except DeviceError as error:
        return [device, host, bus_id, 0, _shortened(str(error), _ROOM // 2)]
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return [device, host, bus_id, major * 10000 + minor * 100 + patch, ""]


def _host() -> str:
    """Return the host's name among the ranks: as it is, or what stands for it where that is odd."""
    # NCCL's own name for a host, where somebody has given it one.
    name = os.environ.get("NCCL_HOSTID") or f"{platform.node()} {_boot_id()}"
    if len(name) <= _NAME_ROOM and name.isascii() and name.isprintable():
        return name
    # Not cut: what comes later may be what tells hosts from each other.
    return hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=16).hexdigest()


def _shortened(text: str, room: int) -> str:
    """Return as much of a text as takes no more than ``room`` bytes in JSON."""
    text = text.encode(errors="replace")[:room].decode(errors="ignore")
    while len(_as_json(text)) > room:
        text = text[:-1]
    return text


def _as_json(facts: Any) -> bytes:
    return json.dumps(facts, ensure_ascii=False).encode()


def _boot_id() -> str:
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.exists() else ""
