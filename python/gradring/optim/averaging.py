"""Weighted averages of gradients over ranks, in buckets, for NumPy arrays.

`SyncOptimizer`'s half that talks. The average is sum(w_r * g_r) / sum(w_r): with w_r the number of
examples behind g_r it is the gradient of all ranks' batches put together. Every element is
multiplied by the weight, added over the ranks in the order of `Communicator.all_reduce`, and
divided by the sum of weights, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring.collectives.communicator import Communicator
from gradring.collectives.fusion import assign_buckets, require_bucket_bytes
from gradring.collectives.same_lines import Mark
from gradring.errors import InvalidArgument
from gradring.optim.gradients import fitting_gradients

Array = npt.NDArray[Any]

SAME_ADVICE = "give SyncOptimizer the same on every rank, and change it between the same two steps"

# Weights are multiplied and added up in float32, also by servers, who refuse more than this.
_LEAST_WEIGHT = float(np.finfo(np.float32).tiny)
_MOST_WEIGHT = 1e30


def require_weight(weight: float) -> float:
    """Return the weight as a float.

    Raises:
        InvalidArgument: It is no number, negative, or beyond what gradients can be multiplied by.
    """
    try:
        weight = float(weight)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"weight {weight!r} is no number of examples") from None
    if not (weight == 0 or _LEAST_WEIGHT <= weight <= _MOST_WEIGHT):
        raise InvalidArgument(
            f"weight {weight} is not a number of examples; use 0, or {_LEAST_WEIGHT:g} to "
            f"{_MOST_WEIGHT:g}"
        )
    return weight


def no_examples() -> InvalidArgument:
    """Return the error of a step to which every rank came with weight 0."""
    return InvalidArgument(
        "every rank has weight 0 in this step, so there is nothing to average; end the loop once "
        "all ranks have run out, as `uneven()` does"
    )


class Averager:
    """Averages lists of gradients like one fixed list of parameters. Caller's thread only."""

    def __init__(self, params: Sequence[Array], comm: Communicator, bucket_bytes: int) -> None:
        """Lay out the buckets; nothing is sent."""
        require_bucket_bytes(bucket_bytes)
        self._comm = comm
        self._shapes = [param.shape for param in params]
        self._dtypes = [param.dtype for param in params]
        sizes_bytes = [param.nbytes for param in params]
        self._buckets = assign_buckets(sizes_bytes, self._dtypes, bucket_bytes)
        self._flats: list[Array] = []
        self._slots: list[Array] = [np.empty(0)] * len(params)
        if comm.world_size > 1:
            self._allocate(params)

    def _allocate(self, params: Sequence[Array]) -> None:
        for bucket in self._buckets:
            flat = np.empty(sum(params[index].size for index in bucket), params[bucket[0]].dtype)
            begin = 0
            for index in bucket:
                end = begin + params[index].size
                self._slots[index] = flat[begin:end].reshape(params[index].shape)
                begin = end
            self._flats.append(flat)

    def average(
        self, grads: Sequence[Array | None], weight: float, told: Mark
    ) -> list[Array | None]:
        """Return the averages over all ranks; a collective call.

        Args:
            grads: One for each parameter; ``None`` where this rank has none, which counts as zero.
            weight: This rank's number of examples; with 0 its gradients are not looked at.
            told: By what this rank steps; the same on all.

        Returns:
            Arrays that are valid until the next call; ``None`` where no rank had a gradient.

        Raises:
            InvalidArgument: Gradients do not fit, the weight makes no sense, or all weights are 0.
            Mismatch: Ranks would step differently; no gradient was sent.
        """
        weight = require_weight(weight)
        grads = self.checked(grads)
        if self._comm.world_size == 1:
            if weight == 0:
                raise no_examples()
            return grads
        if weight == 0:
            grads = [None] * len(grads)
        has_grad = [grad is not None for grad in grads]
        control = np.array([*told.columns, weight, *has_grad], np.float64)
        self._comm.all_reduce(control)
        told.require_everybodys(control[:2].tolist(), self._comm, SAME_ADVICE)
        total, is_used = float(control[2]), control[3:] > 0
        if total == 0:
            raise no_examples()
        self._sum(grads, weight)
        for flat in self._flats:
            np.divide(flat, total, out=flat)
        return [slot if used else None for slot, used in zip(self._slots, is_used, strict=True)]

    def _sum(self, grads: Sequence[Array | None], weight: float) -> None:
        # While one bucket travels, the next is packed.
        works = []
        for bucket, flat in zip(self._buckets, self._flats, strict=True):
            for index in bucket:
                grad, slot = grads[index], self._slots[index]
                if grad is None:
                    slot[...] = 0
                elif weight == 1:
                    np.copyto(slot, grad, casting="same_kind")
                else:
                    # NumPy would multiply in the gradient's own dtype: float16 ends at 65504.
                    wide = np.result_type(grad.dtype, slot.dtype)
                    np.multiply(grad, weight, out=slot, dtype=wide, casting="same_kind")
            if len(self._buckets) == 1:
                self._comm.all_reduce(flat)
            else:
                works.append(self._comm.all_reduce(flat, async_op=True))
        for work in works:
            work.wait()

    def checked(self, grads: Sequence[Array | None]) -> list[Array | None]:
        """Return the gradients as arrays; nothing is sent.

        Raises:
            InvalidArgument: Their number, a shape or a dtype does not fit the parameters.
            DeviceError: One lives on a device.
        """
        return fitting_gradients(grads, self._shapes, self._dtypes)
