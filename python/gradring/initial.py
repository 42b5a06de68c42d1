"""How a table's rows begin: `gr.init.Uniform`, `gr.init.Normal`, `gr.init.Constant`.

Plain values. A server draws a row's first values as a function of seed, table, id and column alone
(Philox 4x32-10, Salmon et al. 2011): whoever touches the row first, on any number of servers, the
row begins the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from gradring.errors import InvalidArgument


@dataclass(frozen=True)
class Constant:
    """The same everywhere.

    Attributes:
        value: Float32.
    """

    value: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _require_finite("Constant", value=self.value)


@dataclass(frozen=True)
class Uniform:
    """Evenly between two bounds: ``Uniform(0, 1)``, or ``Uniform(0.01)`` for -0.01 to 0.01.

    Attributes:
        low: The lower bound; alone it stands for both, with either sign.
        high: The upper bound; not below ``low``.
    """

    low: float
    high: float | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _require_finite("Uniform", low=self.low, high=0 if self.high is None else self.high)
        low, high = self.bounds
        if low > high:
            raise InvalidArgument(f"Uniform: low {low} is above high {high}")

    @property
    def bounds(self) -> tuple[float, float]:
        """Both bounds, in order."""
        if self.high is None:
            return -abs(self.low), abs(self.low)
        return self.low, self.high


@dataclass(frozen=True)
class Normal:
    """The normal distribution.

    Attributes:
        mean: Where it is centred.
        std: Its standard deviation; not negative.
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        _require_finite("Normal", mean=self.mean, std=self.std)
        if self.std < 0:
            raise InvalidArgument(f"Normal: std must not be negative, got {self.std}")


Initializer: TypeAlias = Constant | Uniform | Normal


def _require_finite(kind: str, **values: float) -> None:
    for name, value in values.items():
        try:
            is_finite = math.isfinite(value)
        except (TypeError, OverflowError):
            raise InvalidArgument(f"{kind}: {name} is no number: {value!r}") from None
        if not is_finite:
            raise InvalidArgument(f"{kind}: {name} must be finite, got {value}")
