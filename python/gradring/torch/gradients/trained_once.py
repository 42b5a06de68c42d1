"""`Training`: which parameters open optimizers train, so that no two train the same one.

Each would average, while backward runs, what the other has averaged or still reduces. Used from the
threads that make optimizers.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

import torch

from gradring.errors import InvalidArgument
from gradring.torch.gradients.parameters import Named


class _Closable(Protocol):
    @property
    def is_closed(self) -> bool: ...


class Training:
    """What one optimizer trains, for as long as that has it.

    Attributes:
        params: The parameters that get gradients.
    """

    def __init__(self, carrier: _Closable) -> None:
        """Train nothing yet; what ``carrier`` is closed carries nothing any more."""
        self.params: Sequence[torch.Tensor] = ()
        self._carrier = carrier
        with _lock:
            _known.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the optimizer goes on."""
        return not self._carrier.is_closed


_known: weakref.WeakSet[Training] = weakref.WeakSet()
_lock = threading.RLock()  # A signal handler may come in between.


def require_untrained(named: Named, besides: Training | None = None) -> None:
    """Refuse parameters that an open optimizer trains.

    Args:
        named: Parameters by name; frozen ones may be in any number of optimizers.
        besides: The optimizer's own.

    Raises:
        InvalidArgument: One is trained; names it and says what to do.
    """
    if _first_trained(named, besides) is None:
        return
    gc.collect()  # One that nobody can step any more trains nothing.
    name = _first_trained(named, besides)
    if name is not None:
        raise InvalidArgument(
            f"{name} is trained by another distributed optimizer that is open, and each would "
            "change the other's averages; make one optimizer with a parameter group for each part, "
            "or close() the first one before"
        )


def _first_trained(named: Named, besides: Training | None) -> str | None:
    with _lock:
        others = [each for each in _known if each is not besides and each.is_open]
    trained = {id(param) for each in others for param in each.params}
    return next(
        (name for name, param in named.items() if param.requires_grad and id(param) in trained),
        None,
    )
