"""`ServedParameters`: the parameters of an optimizer as servers' tables and replicas take them.

Modes read and write the memory that a parameter has when it joins, so that one whose memory is
another later would be trained by nobody. A storage may move by itself, into shared memory say: then
what modes had is gone, and they are told of the new place before they read or write again. Used by
`gradring.torch.served.served_optimizer`, on the training thread.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from gradring.arrays import buffers
from gradring.errors import DeviceError, InvalidArgument
from gradring.torch.gradients.parameters import require_shape

# What to do instead of giving a parameter another memory.
_INTO_REPLICAS = "write into what it had with copy_(), instead of giving it another .data"
_INTO_TABLES = (
    "let it have it back. In this mode its values are the servers', and take the place of "
    "what is written into it: load values before distributed(), or write them into the servers' "
    "table (docs/modes.md, Tables and names)"
)


class ServedParameters:
    """An optimizer's parameters, and where they lie.

    Attributes:
        params: In the order of the groups.
        names: What errors call them.
        memory: Of each, as an array that modes write.
    """

    def __init__(self, named: Mapping[str, torch.Tensor], *, is_local: bool) -> None:
        """Look at the parameters.

        Args:
            named: With the names that errors give them.
            is_local: This worker steps, so that training goes on from what is written into them.

        Raises:
            DeviceError: One is on a device.
            InvalidArgument: One is empty, not contiguous, no float32, or has no shape yet; or two
                lie in the same memory.
        """
        self.params = list(named.values())
        self.memory = [_memory_of(name, param) for name, param in named.items()]
        self.names = list(named)
        self._is_local = is_local
        self._require_apart()
        # Over the storages that they have now, whatever `.data` becomes.
        self._first = [param.detach() for param in self.params]
        self._addresses = [first.data_ptr() for first in self._first]
        self.take_note()

    def _require_apart(self) -> None:
        places = sorted(
            (param.data_ptr(), param.nbytes, name)
            for name, param in zip(self.names, self.params, strict=True)
        )
        for (begin, size, name), (after, _, other) in itertools.pairwise(places):
            if begin + size > after:
                raise InvalidArgument(
                    f"{name} and {other} lie in the same memory: servers have a table for each, "
                    "and would step twice; let both modules have one Parameter, as in "
                    "`decoder.weight = encoder.weight`"
                )

    def follow(self) -> bool:
        """Look for parameters whose storage has moved, as `share_memory_` moves it.

        Returns:
            Whether `memory` is elsewhere by now; what it was before must not be touched.
        """
        addresses = [first.data_ptr() for first in self._first]
        if addresses == self._addresses:
            return False
        self.memory = [
            _memory_of(name, first) for name, first in zip(self.names, self._first, strict=True)
        ]
        self._addresses = addresses
        return True

    def require_in_place(self) -> None:
        """Raise `InvalidArgument` where a parameter has other memory by now; names it."""
        for name, param, first in zip(self.names, self.params, self._first, strict=True):
            if param.data_ptr() != first.data_ptr():
                raise InvalidArgument(
                    f"{name}: its memory was replaced after distributed(), and training would not "
                    f"reach it; {_INTO_REPLICAS if self._is_local else _INTO_TABLES}"
                )

    def take_note(self) -> None:
        """Have what was written into parameters so far be the servers' values, or on its way."""
        self._writes = list(map(_writes_of, self.params))

    def written_by_the_script(self) -> set[int]:
        """Return the places of parameters that torch has written into since `take_note`."""
        return {
            place
            for place, (param, writes) in enumerate(zip(self.params, self._writes, strict=True))
            if _writes_of(param) != writes
        }

    def gradients(self) -> list[Any]:
        """Return each one's as an array over the same memory; ``None`` where there is none.

        Raises:
            InvalidArgument: One is sparse; names it.
        """
        return [
            _gradient_of(name, param) for name, param in zip(self.names, self.params, strict=True)
        ]

    def entries(self, states: Mapping[Any, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return what torch keeps for each as an entry of `gradring.optim.state`."""
        return [
            {
                name: value.detach().numpy() if torch.is_tensor(value) else value
                for name, value in states.get(param, {}).items()
            }
            for param in self.params
        ]


def _memory_of(name: str, param: torch.Tensor) -> Any:
    if param.device.type != "cpu":
        raise DeviceError(f"{name} is on {param.device}; this version trains on the CPU")
    require_shape(name, param)
    if param.numel() == 0:
        raise InvalidArgument(f"{name} is empty, of shape {tuple(param.shape)}; leave it out")
    if param.dtype != torch.float32 or not param.is_contiguous():
        raise InvalidArgument(
            f"{name} is {param.dtype}, of shape {tuple(param.shape)} and strides "
            f"{param.stride()}; servers hold contiguous float32 arrays"
        )
    return buffers.view(param.detach(), name, writes=True).buffer


def _writes_of(param: torch.Tensor) -> int:
    """Return how often torch has written into it; modes do through arrays over its memory."""
    return 0 if param.is_inference() else param._version  # noqa: SLF001 - there is no other name


def _gradient_of(name: str, param: torch.Tensor) -> Any:
    if param.grad is None:
        return None
    if param.grad.is_sparse:
        raise InvalidArgument(
            f"{name} has a sparse gradient, and servers take dense ones; give its layer "
            "sparse=False, or make it a gradring.torch.Embedding"
        )
    return param.grad.detach().resolve_neg().float().numpy()
