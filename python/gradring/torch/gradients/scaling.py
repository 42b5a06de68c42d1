"""How an optimizer of several ranks and a `torch.amp.GradScaler` get along.

The scaler leaves out a step whose gradients have overflowed, and then lowers its scale. Ranks stay
together only if all leave out the same steps, so it must find the same everywhere. An optimizer may
unscale by itself (torch's fused ones do), and the scaler asks for that before it looks: then
averages are waited for, or, where servers make those, ranks agree on what is found. After it has
looked it calls ``step`` in any case, and what it knows are two attributes of the optimizer. The
gradients of embeddings' rows it does not see: for an overflow in those it is shown another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gradring.collectives.communicator import Communicator
from gradring.errors import InvalidArgument
from gradring.torch.gradients.buckets import grad_dtype_of

_ATTRIBUTES = ("grad_scale", "found_inf")


class Asked:
    """An optimizer's answer to a scaler: true, after something has been done first.

    What is done may be a collective call, so that it is done when the answer is tested, and not
    when somebody lists the optimizer's attributes.
    """

    def __init__(self, prepare: Callable[[], None]) -> None:
        """Call ``prepare`` before the scaler looks at gradients."""
        self._prepare = prepare

    def __bool__(self) -> bool:
        """Prepare."""
        self._prepare()
        return True


class Told:
    """What a scaler has told an optimizer about one step.

    Attributes:
        is_overflow: Some gradient is not finite: the step is to be left out.
        is_unscaled: Gradients have been divided by the scale before (``scaler.unscale_``).
    """

    def __init__(self, scale: torch.Tensor | None, found: Any) -> None:
        """Take the two attributes."""
        self.is_overflow = bool(found)
        self.is_unscaled = scale is None
        self._scale = scale
        self._unscaled: list[torch.Tensor] = []
        # As the scaler does it, so that it makes no difference who does.
        self._factor = None if scale is None else scale.double().reciprocal().float()

    def require_no_closure(self, closure: Any) -> None:
        """Raise `InvalidArgument` if the step has one."""
        if closure is not None:
            raise InvalidArgument(
                "GradScaler.step takes no closure: it looks at gradients before that makes them"
            )

    def require_scaled_rows(self) -> None:
        """Raise `InvalidArgument` if the scale of a model's rows is unknown."""
        if self.is_unscaled:
            raise InvalidArgument(
                "GradScaler.unscale_() does not see the rows of gradring.torch.Embedding, and "
                "nobody knows their scale after it; leave it to GradScaler.step(), and clip "
                "parameters with distributed(..., clip_norm=), rows with their rule's clip_norm="
            )

    def require_no_half(self, grads: Iterable[torch.Tensor | None]) -> None:
        """Raise `InvalidArgument` if a gradient is float16, of which there is not enough."""
        if any(grad is not None and grad.dtype == torch.float16 for grad in grads):
            raise InvalidArgument(
                "GradScaler cannot unscale float16 gradients; leave the parameters float32 and "
                "compute in float16 under torch.autocast"
            )

    def unscale(self, grads: Iterable[torch.Tensor | None]) -> None:
        """Divide gradients by the scale, in place, where that has not been done.

        Args:
            grads: Of any dtype that `torch.amp.GradScaler.unscale_` takes.

        Raises:
            InvalidArgument: As `require_no_half`; nothing was divided.
        """
        if self._factor is None:
            return
        alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        present = [grad for grad in grads if grad is not None]
        self.require_no_half(present)
        for grad in present:
            values = grad._values() if grad.is_sparse else grad  # noqa: SLF001
            alike.setdefault((grad.device, grad.dtype), []).append(values)
        for (device, _), group in alike.items():
            found = torch.zeros((), dtype=torch.float32, device=device)
            factor = self._factor.to(device)
            torch._amp_foreach_non_finite_check_and_unscale_(group, found, factor)
            self._unscaled += group

    def scale_again(self) -> None:
        """Give gradients back the scale that `unscale` has taken from them.

        Exact where the scale is a power of two, as it is unless a scaler is told otherwise.
        """
        if self._scale is None:
            return
        with torch.no_grad():
            for values in self._unscaled:
                values.mul_(self._scale.to(values.device))
        self._unscaled.clear()


class Scaling:
    """What a scaler does to the steps of one optimizer: each once, also where it is repeated."""

    def __init__(self, comm: Communicator | None) -> None:
        """Begin with a step of which no scaler knows.

        Args:
            comm: The ranks that leave out the same steps; ``None``: this one alone.
        """
        self._comm = comm
        self._told: Told | None = None  # While a step is under way.
        self._has_overflow: bool | None = None  # What ranks have agreed on.
        self._round_number = 0  # Of which.

    @contextlib.contextmanager
    def told_to(self, optimizer: torch.optim.Optimizer) -> Iterator[Told | None]:
        """Take what a scaler has left for this step; ``None`` where no scaler called it."""
        attributes: dict[str, Any] = vars(optimizer)
        if "found_inf" not in attributes:
            yield None
            return
        self._told = told = Told(*(attributes[name] for name in _ATTRIBUTES))
        # It is done with them: a fused optimizer would unscale once more.
        attributes.update(dict.fromkeys(_ATTRIBUTES))
        try:
            yield told
        except BaseException:
            # The scaler deletes them after a step alone; its next one would multiply by what is
            # left. And it unscales again, unless the step is done all the same.
            for name in _ATTRIBUTES:
                del attributes[name]
            if self._told is told:
                told.scale_again()
            raise
        finally:
            self._told = None

    def end_step(self) -> None:
        """The step is done, or dropped: what comes has other gradients."""
        self._told = self._has_overflow = None

    def agree_on_overflow(
        self,
        params: Sequence[torch.Tensor],
        unseen: Sequence[torch.Tensor] = (),
        *,
        weight: float = 1,
        round_number: int = 0,
    ) -> None:
        """Have the scalers of all ranks find an overflow if any would; a collective call.

        For gradients that never leave their rank as they are. In a step that is repeated after an
        error nobody is asked again, for others may have done it.

        Args:
            params: Their ``.grad`` is changed where the scaler would find something else.
            unseen: Gradients that the scaler does not look at.
            weight: 0 is a rank whose gradients, if it has any, are of no use.
            round_number: Another one for other gradients, where that is known; on every rank alike.
        """
        if weight == 0:
            for param in params:
                param.grad = None
        is_seen = not _are_finite([param.grad for param in params if param.grad is not None])
        if self._is_alone or self._has_overflow is None or self._round_number != round_number:
            self._has_overflow = self._any_has(is_seen or not _are_finite(unseen))
            self._round_number = round_number
        if self._has_overflow and not is_seen:
            _show(params[0], torch.inf)
        elif weight == 0:
            _show(params[0], 0)  # The scaler wants to have seen something.

    @property
    def _is_alone(self) -> bool:
        return self._comm is None or self._comm.world_size == 1

    def _any_has(self, has_overflow: bool) -> bool:
        if self._comm is None or self._is_alone:
            return has_overflow
        found = np.array([has_overflow], np.int32)
        self._comm.all_reduce(found, "max")
        return bool(found[0])


def _show(param: torch.Tensor, value: float) -> None:
    param.grad = torch.full_like(param, value, dtype=grad_dtype_of(param))


def _are_finite(grads: Iterable[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(grad).all()) for grad in grads if not grad.is_sparse)
