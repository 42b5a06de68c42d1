"""`broadcast_state`: all ranks go on from what one of them has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gradring.collectives.calling import whole_number
from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import current, require_ranks
from gradring.collectives.values.agreement import agreed
from gradring.errors import InvalidArgument
from gradring.torch.state.agreement import agreed_names
from gradring.torch.state.sending import receive, send
from gradring.torch.state.written import Reader, Writer

_CALL = "broadcast_state"


def broadcast_state(
    state: Mapping[str, Any],
    *,
    root: int = 0,
    comm: Communicator | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Give all ranks what one rank has: states of models and optimizers, and plain values.

    A collective call. ``state`` has names for two kinds of things: objects with ``state_dict()``
    and ``load_state_dict()`` (modules, optimizers, schedulers, a `torch.amp.GradScaler`) take the
    root's state in place; of plain values the root's are returned. What the ranks had before does
    not matter: an optimizer that has not stepped gets all of the root's state. No code comes over
    the wire. Tensors travel in pieces, straight from their memory; a rank that is not the root
    holds what has come beside what it had until all of it is there, and loads it then.

    A plain value is a number, a string, bytes, True, False, None, a tensor or a NumPy array, or a
    list, tuple or dict of such. Tensors are of any dtype, dense or in COO format, on any device,
    and arrive on the CPU; loading takes them where the object has its own.

    Args:
        state: The same names on every rank, with objects under the same ones. Plain values are
            looked at on the root only, and only there is ``state_dict()`` called: it may be no
            collective call itself, as FSDP's is.
        root: The rank whose state it is.
        comm: ``None``: what `init` made, or makes now.
        timeout: As for `Communicator.all_reduce`, and the longest time that a rank may take to make
            its state or to load it; ``None``: the communicator's.

    Returns:
        The root's plain values, by name; on the root itself what was given.

    Raises:
        InvalidArgument: Something cannot be sent: a tensor of parts (DTensor), say, or an object
            without ``state_dict()``, or an optimizer whose state is on parameter servers; or
            ``root`` is no rank. On every rank, with the rank and the place, and before anything is
            sent.
        Mismatch: The ranks give other names or another ``root``, or one that is not this could not
            take the state: names it. That rank raises what ``load_state_dict`` raised there.
            What was loaded stays.
        PeerLost: A rank died, froze or left; and so for TimedOut and Closed. This rank has loaded
            all or nothing.
    """
    require_ranks(comm)
    comm = current() if comm is None else comm
    writer, text = Writer(), ""

    def prepare() -> Mapping[str, bool]:
        nonlocal text
        are_objects = _are_objects(state)
        if comm.world_size > 1:
            _require_own_state(state)
        if not 0 <= whole_number("broadcast_state: root", root) < comm.world_size:
            raise InvalidArgument(
                f"broadcast_state: root {root} is not one of 0..{comm.world_size - 1}"
            )
        if comm.rank == root:
            text = _write(writer, state, are_objects)
        return are_objects

    with torch.no_grad():
        are_objects = agreed_names(comm, root, prepare, timeout)
        if comm.rank != root:
            return _take(comm, state, are_objects, root, timeout)
        if comm.world_size > 1:
            _give(comm, writer, text, timeout)
    return {name: state[name] for name, is_object in are_objects.items() if not is_object}


# Both sides of one exchange: each call here has its other half in the same place there.


def _give(comm: Communicator, writer: Writer, text: str, timeout: float | None) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    comm.broadcast(np.array([data.size], np.int64), comm.rank, timeout=timeout)
    comm.broadcast(data, comm.rank, timeout=timeout)
    agreed(comm, _CALL, "make room for the state", _nothing, timeout)
    problems: list[Exception] = []
    send(comm, writer.sources, problems, timeout)
    agreed(comm, _CALL, "send the state", lambda: _raise_first(problems), timeout)
    agreed(comm, _CALL, "load the state", _nothing, timeout)


def _take(
    comm: Communicator,
    state: Mapping[str, Any],
    are_objects: Mapping[str, bool],
    root: int,
    timeout: float | None,
) -> dict[str, Any]:
    size = comm.broadcast(np.zeros(1, np.int64), root, timeout=timeout)
    data = comm.broadcast(np.empty(int(size[0]), np.uint8), root, timeout=timeout)
    reader = agreed(
        comm, _CALL, "make room for the state", lambda: Reader(data.tobytes().decode()), timeout
    )
    receive(comm, reader.targets, root, timeout)
    agreed(comm, _CALL, "send the state", _nothing, timeout)
    return agreed(comm, _CALL, "load the state", lambda: _load(reader, state, are_objects), timeout)


def _load(
    reader: Reader, state: Mapping[str, Any], are_objects: Mapping[str, bool]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in reader.value().items():
        if are_objects[name]:
            state[name].load_state_dict(value)
        else:
            values[name] = value
    return values


def _write(writer: Writer, state: Mapping[str, Any], are_objects: Mapping[str, bool]) -> str:
    sent = {
        name: state[name].state_dict() if is_object else state[name]
        for name, is_object in are_objects.items()
    }
    return writer.text(sent, "state")


def _are_objects(state: Any) -> dict[str, bool]:
    if not isinstance(state, Mapping) or not all(type(name) is str for name in state):
        raise InvalidArgument(
            "broadcast_state: state is a dict with names as keys: {'model': model, 'step': step}"
        )
    return {name: _has_state(each) for name, each in state.items()}


def _require_own_state(state: Mapping[str, Any]) -> None:
    for name, each in state.items():
        if getattr(each, "has_state_on_servers", False):
            raise InvalidArgument(
                f"broadcast_state: the state of {name!r} is on parameter servers, the same one for "
                "every rank: leave it out, or broadcast it before gradring.torch.distributed()"
            )


def _has_state(value: Any) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")
    )


def _nothing() -> None:
    pass


def _raise_first(problems: list[Exception]) -> None:
    for problem in problems:
        raise problem
