"""Who is who where every process is told the address of each: TF_CONFIG, and Paddle's variables.

Pure text and numbers; `gradring.launchers.known` is the only reader. What both lack, a local rank
and a meeting point, is read out of the list of addresses: equal hosts are one host, and the ranks
meet on rank 0's, beside the ports that the list names, since TensorFlow's or Paddle's own servers
may listen there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradring.errors import InvalidArgument
from gradring.settings.address import parse_address

PADDLE_ENDPOINTS = "PADDLE_TRAINER_ENDPOINTS"

_RANKS = ("chief", "worker")  # Types of tasks that train, in the order of their ranks.


def local_place(addresses: Sequence[str], rank: int, source: str) -> tuple[int, int]:
    """Return a rank's number among those of its host, and how many these are.

    Args:
        addresses: Of all ranks, in their order; ``host:port``.
        rank: Below their number.
        source: The variable they are from, for messages.

    Raises:
        InvalidArgument: One is not ``host:port``.
    """
    hosts = [parse_address(address, source)[0] for address in addresses]
    return hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])


def meeting_point(addresses: Sequence[str], source: str) -> tuple[str, int]:
    """Return rank 0's host, and the first port there after its own that is nobody's.

    Raises:
        InvalidArgument: As `local_place`.
    """
    taken = [parse_address(address, source) for address in addresses]
    host, own = taken[0]
    after = [*range(own + 1, 65536), *range(own - 1, 0, -1)]
    return host, next(port for port in after if (host, port) not in taken)


def of_tf_config(text: str) -> tuple[int, list[str]] | None:
    """Return this task's rank and the addresses of all ranks; ``None`` where it names no cluster.

    The chief, where there is one, is rank 0; workers follow. TensorFlow too runs alone without a
    cluster.

    Raises:
        InvalidArgument: It is not written as TensorFlow wants it, or this task is none that trains.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"TF_CONFIG is not JSON: {error}") from None
    cluster = _member(config, "cluster")
    if not cluster:
        return None
    task = _member(config, "task")
    kind, index = task.get("type"), task.get("index")
    addresses: list[str] = []
    rank = None
    for each in _RANKS:
        tasks = cluster.get(each, [])
        if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
            raise InvalidArgument(f"TF_CONFIG: cluster.{each} is not a list of host:port")
        if each == kind and type(index) is int and 0 <= index < len(tasks):
            rank = len(addresses) + index
        addresses += tasks
    if kind not in _RANKS:
        raise InvalidArgument(
            f"TF_CONFIG: a task of type {kind!r} is no rank, chief and workers are; what parameter "
            "servers do, `gradring serve` does; unset TF_CONFIG to run alone"
        )
    if rank is None:
        raise InvalidArgument(
            f"TF_CONFIG: task.index={index!r} is none of cluster.{kind}, which has "
            f"{len(cluster.get(kind, []))}"
        )
    return rank, addresses


def _member(config: Any, name: str) -> dict[str, Any]:
    found = config.get(name, {}) if isinstance(config, dict) else None
    if not isinstance(found, dict):
        raise InvalidArgument(
            f"TF_CONFIG: {name} is no object; TF_CONFIG is one with a cluster and a task"
        )
    return found


def of_paddle(environ: Mapping[str, str], world_size: int) -> list[str]:
    """Return the addresses of all trainers; empty where they are not told.

    Raises:
        InvalidArgument: This process is a server, or there are not as many as trainers.
    """
    if environ.get("TRAINING_ROLE") == "PSERVER":
        raise InvalidArgument(
            "TRAINING_ROLE=PSERVER: this process is no rank, trainers are; what Paddle's servers "
            "do, `gradring serve` does"
        )
    text = environ.get(PADDLE_ENDPOINTS, "")
    addresses = [address.strip() for address in text.split(",")] if text else []
    if addresses and len(addresses) != world_size:
        raise InvalidArgument(
            f"{PADDLE_ENDPOINTS} has {len(addresses)} addresses, PADDLE_TRAINERS_NUM={world_size}"
        )
    return addresses
