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
            pad: Repeat the first examples, so that every rank has equally many.

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
        self._epoch = 0
        self._length = shard_length(
            self._count, self._comm.rank, self._comm.world_size, drop_last=drop_last, pad=pad
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next; call it on every rank before each epoch.

        Raises:
            InvalidArgument: It is negative, or no whole number.
        """
        self._epoch = require_order("epoch", epoch)

    def __len__(self) -> int:
        """Return the number of this rank's examples."""
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's indices in the order of the epoch."""
        indices = shard(
            self._count,
            self._comm,
            epoch=self._epoch,
            shuffle=self._shuffle,
            seed=self._seed,
            drop_last=self._drop_last,
            pad=self._pad,
        )
        return iter(indices.tolist())
