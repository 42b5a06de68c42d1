"""torch.distributed's reduction operators as the core knows them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradring.errors import InvalidArgument

_NAMES = {
    "SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max",
    "BAND": "band", "BOR": "bor", "BXOR": "bxor", "PREMUL_SUM": "sum",
}  # fmt: skip
_LINEAR = frozenset(("SUM", "AVG", "PREMUL_SUM"))


class Operator:
    """How to combine the tensors of all ranks.

    Attributes:
        name: The core's operator.
        factor: What each rank multiplies its values by beforehand; ``None`` is one.
    """

    def __init__(self, op: Any, dtype: torch.dtype) -> None:
        """Read a ``torch.distributed.ReduceOp``.

        Raises:
            InvalidArgument: It is not defined for ``dtype``.
        """
        kind = getattr(op, "op", op)  # Of a ReduceOp, or one of its constants.
        if kind.name not in _NAMES:
            raise InvalidArgument(f"there is no reduction with {kind}")
        if dtype.is_complex and kind.name not in _LINEAR:
            raise InvalidArgument(f"{kind.name} is not defined for complex numbers")
        self.name = _NAMES[kind.name]
        self.factor: Any = op.__getstate__()[1] if kind.name == "PREMUL_SUM" else None

    def prepared(self, staged: Tensor) -> Tensor:
        """Multiply a staged tensor, in place, by the factor."""
        return staged if self.factor is None else staged.mul_(self.factor)
