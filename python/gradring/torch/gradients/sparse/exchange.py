"""`SparseGradients`: gradients in COO format, averaged by gathering the entries of all ranks.

They have no fixed size, so they travel outside of the buckets, at the end of backward: first every
rank says of each parameter what it has, then the entries come, as they are
(`gradring.torch.c10d.calls.entries`). The second needs what the first has brought, so a thread does
both: a rank that waits elsewhere, for another optimizer say, keeps nobody waiting. Where no rank
knows beforehand that there are any, marks in the buckets tell. Owned by
`gradring.torch.gradients.averaging`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch

from gradring.collectives.communicator import Communicator
from gradring.errors import Mismatch
from gradring.torch.c10d.calls import entries
from gradring.torch.c10d.calls.job import Job
from gradring.torch.c10d.calls.lanes import Lane
from gradring.torch.gradients.buckets import as_real, grad_dtype_of
from gradring.torch.gradients.parameters import Named

# What a rank says of a parameter; of a sparse gradient it is its entries and sparse dimensions.
_NONE, _DENSE = -1, -2
_DIM_BITS = 7  # More dimensions than a tensor can have.


class SparseGradients:
    """The sparse gradients of one optimizer.

    Attributes:
        apart: Indices of parameters that have no slot in a bucket; alike on all ranks.
        has_begun: Whether this round's are on their way.
        sent_bytes: What this rank had to send in this round.
    """

    def __init__(
        self,
        comm: Communicator,
        names: Sequence[str],
        params: Sequence[torch.Tensor],
        apart: Collection[int],
    ) -> None:
        """Begin with the gradients of ``apart`` believed to be sparse.

        Args:
            comm: Carries nothing else between `start` and the end of its job.
            names: Of the parameters.
            params: The optimizer's list.
            apart: Alike on all ranks. Where it is wrong, the first round tells.
        """
        self.apart = frozenset(apart)
        self._comm = comm
        self._names = names
        self._params = params
        self._found = self.apart  # What the last round says that `apart` should be.
        self._lane = Lane("gradring sparse gradients")
        weakref.finalize(self, self._lane.stop)
        self.reset()

    def reset(self) -> None:
        """Begin another round."""
        self.has_begun = False
        self.sent_bytes = 0
        self._heads = [_NONE] * len(self._params)
        self._mine: dict[int, torch.Tensor] = {}
        self._dense: dict[int, torch.Tensor] = {}
        self._sums: dict[int, torch.Tensor] = {}
        self._difference = ""

    def stop(self) -> None:
        """End the thread after what it is doing."""
        self._lane.stop()

    def take(self, index: int, weight: float) -> None:
        """Take a parameter's gradient, or that there is none here or a dense one."""
        param = self._params[index]
        grad = param.grad
        if grad is None or weight == 0:
            return
        if grad.layout == torch.strided:
            self._heads[index] = _DENSE
            if index in self.apart:
                wide = grad.detach().to(self._dtype(index)).cpu()
                self._dense[index] = wide.contiguous() * weight
            return
        # Here, on the stream that has made it.
        mine = grad.detach().to(self._dtype(index)).coalesce().cpu()
        self._mine[index] = entries.with_values(mine, mine.values() * weight)
        self._heads[index] = mine.indices().shape[1] << _DIM_BITS | mine.sparse_dim()

    @property
    def are_wanted(self) -> bool:
        """Whether this rank knows that ranks have to exchange what they have."""
        return bool(self.apart or self._mine)

    def start(self) -> Job:
        """Exchange what all ranks have taken; all must do so in a round, or none."""
        self.has_begun = True
        return Job(self._lane, self._exchange, "averaging of sparse gradients")

    def require_alike(self, before_it_raises: Callable[[], None]) -> None:
        """Look whether the gradients could be added up, when the job is done.

        Raises:
            Mismatch: They are sparse on some ranks and dense on others; on every rank.
        """
        if difference := self._difference:
            before_it_raises()
            raise Mismatch(difference)

    def give(self, total: float) -> int:
        """Let every ``.grad`` be the average, or ``None`` where no counted rank had a gradient.

        Args:
            total: The sum of all ranks' weights.

        Returns:
            The number of averages.
        """
        for index in self.apart - set(self._sums):
            self._params[index].grad = None
        for index, added in self._sums.items():
            param = self._params[index]
            if added.is_sparse:
                average = entries.with_values(added, added.values() / total)
            else:
                average = added / total
            param.grad = average.to(param.device, grad_dtype_of(param))
        return len(self._sums)

    @property
    def arrived(self) -> Collection[int]:
        """Parameters of which ranks had sparse gradients in this round, or that are apart."""
        return self.apart | set(self._sums)

    def learn(self) -> bool:
        """Let ``apart`` be what the last round has shown; whether it is another one."""
        is_new = self._found != self.apart
        self.apart = self._found
        return is_new

    def _dtype(self, index: int) -> torch.dtype:
        return entries.wider(grad_dtype_of(self._params[index]))

    def _exchange(self) -> None:
        heads = self._comm.all_gather(np.array(self._heads, np.int64))
        is_sparse = (heads >= 0).any(axis=0)
        is_dense = (heads == _DENSE).any(axis=0)
        self._difference = self._difference_in(heads, is_sparse, is_dense)
        if self._difference:
            return
        sparse = [int(index) for index in np.flatnonzero(is_sparse)]
        mine = [self._entries_of(index, int(heads[:, index].max())) for index in sparse]
        counts = np.maximum(heads[:, sparse], 0) >> _DIM_BITS
        self._sums |= zip(sparse, entries.merged(self._comm, mine, counts.tolist()), strict=True)
        self.sent_bytes = (self._comm.world_size - 1) * sum(map(entries.bytes_of, mine))
        dense = [index for index in sorted(self.apart) if is_dense[index]]
        for index in dense:
            self._sums[index] = self._sum_of_dense(index)
        self._found = (self.apart | set(sparse)) - set(dense)

    def _entries_of(self, index: int, head: int) -> torch.Tensor:
        if index in self._mine:
            return self._mine[index]
        dims = head & ((1 << _DIM_BITS) - 1)
        return entries.no_entries(self._params[index].shape, dims, self._dtype(index))

    def _sum_of_dense(self, index: int) -> torch.Tensor:
        # It was believed to be sparse, and will be in a bucket from the next round on.
        added = self._dense.get(index)
        if added is None:
            added = torch.zeros(self._params[index].shape, dtype=self._dtype(index))
        self._comm.all_reduce(as_real(added))
        return added

    def _difference_in(self, heads: Any, is_sparse: Any, is_dense: Any) -> str:
        for index in map(int, np.flatnonzero(is_sparse)):
            name, column = self._names[index], heads[:, index]
            first = int(np.argmax(column >= 0))
            if is_dense[index]:
                return (
                    f"{name} has a sparse gradient on rank {first} and a dense one on rank "
                    f"{int(np.argmax(column == _DENSE))}; use it in the same layers on every rank, "
                    "or make it dense everywhere (for an embedding: sparse=False)"
                )
            dims = column & ((1 << _DIM_BITS) - 1)
            others = np.flatnonzero((column >= 0) & (dims != dims[first]))
            if others.size:
                return (
                    f"{name} has a gradient sparse in {dims[first]} dimensions on rank {first} and "
                    f"in {dims[others[0]]} on rank {others[0]}; use it alike on every rank"
                )
        return ""


def names_of(found: Collection[torch.Tensor], named: Named) -> set[str]:
    """Return what errors call those of an optimizer's parameters."""
    return {name for name, param in named.items() if param in found}


def sparse_ones(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | None
) -> set[torch.Tensor]:
    """Return parameters whose gradients are most likely sparse.

    Args:
        optimizer: `torch.optim.SparseAdam` takes no others.
        model: Whose `torch.nn.Embedding` and `EmbeddingBag` layers say ``sparse=True``.
    """
    found: set[torch.Tensor] = set()
    if isinstance(optimizer, torch.optim.SparseAdam):
        found |= {param for group in optimizer.param_groups for param in group["params"]}
    for layer in () if model is None else model.modules():
        if isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and layer.sparse:
            found |= set(layer.parameters(recurse=False))
    return found
