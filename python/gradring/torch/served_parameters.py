"""`ServedParameters`: the parameters of an optimizer as servers' tables and replicas take them.

Modes read and write the memory that a parameter has when it joins, so that one whose memory is
another later would be trained by nobody. Used by `gradring.torch.served`, on the training thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gradring import arrays
from gradring.errors import DeviceError, InvalidArgument


class ServedParameters:
    """An optimizer's parameters, and where they lie.

    Attributes:
        params: In the order of the groups.
        memory: Of each, as an array that modes write.
    """

    def __init__(self, named: Mapping[str, torch.Tensor]) -> None:
        """Look at the parameters.

        Args:
            named: With the names that errors give them.

        Raises:
            DeviceError: One is on a device.
            InvalidArgument: One is not contiguous, or no float32.
        """
        self.params = list(named.values())
        self.memory = [_memory_of(param) for param in self.params]
        self._names = list(named)
        self._addresses = [param.data_ptr() for param in self.params]

    def require_in_place(self) -> None:
        """Raise `InvalidArgument` where a parameter has other memory by now; names it."""
        for name, param, address in zip(self._names, self.params, self._addresses, strict=True):
            if param.data_ptr() != address:
                raise InvalidArgument(
                    f"{name}: its memory was replaced after distributed(), and training would not "
                    "reach it; write into what it had with copy_(), instead of giving it another "
                    ".data"
                )

    def gradients(self) -> list[Any]:
        """Return each one's as an array over the same memory; ``None`` where there is none.

        Raises:
            InvalidArgument: One is sparse.
        """
        return [_gradient_of(param) for param in self.params]

    def entries(self, states: Mapping[Any, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return what torch keeps for each as an entry of `gradring.optim.state`."""
        return [
            {
                name: value.detach().numpy() if torch.is_tensor(value) else value
                for name, value in states.get(param, {}).items()
            }
            for param in self.params
        ]


def _memory_of(param: torch.Tensor) -> Any:
    if param.device.type != "cpu":
        raise DeviceError(f"a parameter is on {param.device}; this version trains on the CPU")
    if param.dtype != torch.float32 or not param.is_contiguous():
        raise InvalidArgument(
            f"a parameter is {param.dtype}, of shape {tuple(param.shape)} and strides "
            f"{param.stride()}; servers hold contiguous float32 arrays"
        )
    return arrays.view(param.detach(), "parameter", writes=True).buffer


def _gradient_of(param: torch.Tensor) -> Any:
    if param.grad is None:
        return None
    if param.grad.is_sparse:
        raise InvalidArgument("sparse gradients: use gradring.torch.Embedding")
    return param.grad.detach().resolve_neg().numpy()
