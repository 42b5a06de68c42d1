"""`Layout`: the buckets of one optimizer, and which of them carries whose gradient.

Owned by `gradring.torch.gradients.averaging`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from gradring.collectives.communicator import Communicator
from gradring.torch.gradients.buckets import Bucket, lay_out, make_buckets


class Layout:
    """Buckets in the order in which every rank starts them.

    Attributes:
        buckets: All of them.
        groups: Indices of the parameters in each.
    """

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        comm: Communicator,
        bucket_bytes: int,
        *,
        is_compressed: bool,
    ) -> None:
        """Have none yet.

        Args:
            params: The optimizer's list.
            comm: The ranks.
            bucket_bytes: Most bytes in a bucket.
            is_compressed: Whether buckets keep what compression leaves out.
        """
        self._params = params
        self._comm = comm
        self._bucket_bytes = bucket_bytes
        self._is_compressed = is_compressed
        # Until it is known better: backward begins at the end.
        self._order: Sequence[int] = range(len(params) - 1, -1, -1)
        self._bucket_of: dict[int, Bucket] = {}
        self.buckets: list[Bucket] = []
        self.groups: list[list[int]] = []

    def lay_out(self, order: Sequence[int] | None, apart: Collection[int]) -> None:
        """Make other buckets where that is needed; a collective call then.

        Args:
            order: Indices of all parameters, as backward reaches them; ``None``: as before.
            apart: Those of parameters that need no slot.
        """
        self._order = self._order if order is None else order
        wanted = [index for index in self._order if index not in apart]
        groups = lay_out(wanted, self._params, self._bucket_bytes)
        if groups == self.groups:
            return
        earlier = self.residuals()
        self.groups = groups
        self.buckets = make_buckets(groups, self._params, self._comm)
        if self._is_compressed:
            self.keep_residuals(earlier)
        self._bucket_of = {index: bucket for bucket in self.buckets for index in bucket.members}

    def put(self, index: int, weight: float) -> None:
        """Take a parameter's gradient, or that there is none here, unless it is apart."""
        if index in self._bucket_of:
            self._bucket_of[index].put(index, self._params[index], weight)

    def have_sparse(self) -> bool:
        """Tell whether a rank had a sparse gradient for a slot, when the buckets have arrived."""
        return any(bucket.has_sparse() for bucket in self.buckets)

    def reset(self) -> None:
        """Wait for every gradient anew."""
        for bucket in self.buckets:
            bucket.reset()

    def keep_residuals(self, earlier: Mapping[int, Any]) -> None:
        """Compress from now on; ``earlier`` are residuals to go on from, by parameter."""
        for bucket in self.buckets:
            bucket.keep_residual(earlier)

    def residuals(self) -> dict[int, Any]:
        """Return what compression has left out of each parameter's gradients so far."""
        found: dict[int, Any] = {}
        for bucket in self.buckets:
            if bucket.residual is not None:
                found |= bucket.residuals()
        return found
