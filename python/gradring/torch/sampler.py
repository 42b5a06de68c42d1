"""A sampler for `torch.utils.data.DataLoader` that gives each rank its part of a data set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import current, require_ranks
from gradring.collectives.sampling import length_of, require_order, shard, shard_length


class Sampler(torch.utils.data.Sampler[int]):
    """Yields this rank's indices, shuffled anew in each epoch; see `gradring.shard`.

    With a batch size of ``global_batch // world_size`` the ranks' batches together are the same
    global batches for any number of ranks. By default nothing is repeated or left out, so a rank
    may have one example, and so one batch, more than another: loop with
    ``optimizer.uneven(loader, weight=...)``.
    """

    def __init__(
        self,
        data: Any,
        comm: Communicator | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        pad: bool = False,
    ) -> None:
        """Choose what to sample; nothing is sent.

        Args:
            data: A data set with a length, or the number of its examples.
            comm: ``None`` is the communicator that `init` made, or makes now.
            shuffle: Shuffle, the same way on every rank.
            seed: Of the shuffle; the same on every rank.
            drop_last: Leave out the last examples, so that every rank has equally many.
            pad: Repeat examples from the head of the list, so that every rank has equally many.

        Raises:
            InvalidArgument: The data set has no length, ``comm`` or ``seed`` is none, or both
                ``drop_last`` and ``pad`` are asked for.
        """
        require_ranks(comm)
        self._count = length_of(data)
        self._comm = current() if comm is None else comm
        self._shuffle = shuffle
        self._seed = require_order("seed", seed)
        self._drop_last = drop_last
        self._pad = pad
        self._epoch = self._first = 0
        self._length = self._length_from(0)

    def set_epoch(self, epoch: int, *, first: int = 0) -> None:
        """Choose the epoch whose order comes next; call it on every rank before each epoch.

        Args:
            epoch: Gives another order in each epoch.
            first: How many examples of the epoch are done, counted over all ranks: steps, times the
                batch size of a rank, times the ranks of that time. Where the number of ranks
                has changed since, make a sampler over the new communicator.

        Raises:
            InvalidArgument: One is negative, or no whole number; nothing has changed.
        """
        epoch, first = require_order("epoch", epoch), require_order("first", first)
        self._epoch, self._first, self._length = epoch, first, self._length_from(first)

    def _length_from(self, first: int) -> int:
        rank, world_size = self._comm.rank, self._comm.world_size
        left = max(self._count - first, 0)
        return shard_length(left, rank, world_size, drop_last=self._drop_last, pad=self._pad)

    def __len__(self) -> int:
        """Return the number of this rank's examples, of what is left of the epoch."""
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's indices in the order of the epoch."""
        indices = shard(
            self._count,
            self._comm,
            epoch=self._epoch,
            first=self._first,
            shuffle=self._shuffle,
            seed=self._seed,
            drop_last=self._drop_last,
            pad=self._pad,
        )
        return iter(indices.tolist())
