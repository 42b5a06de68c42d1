"""`Lookup`: one forward of an `Embedding`; several bring their rows in one round trip.

What is refused is refused before any is asked for. Where a layer has several lookups, as two
features of one table have, its rows come once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from gradring.modes.parameters.tables import prefetch_together, pull_together
from gradring.modes.stores.store import Array, Ids
from gradring.torch.embeddings.alone import attach_alone

if TYPE_CHECKING:
    from gradring.torch.embeddings.embedding import Embedding
    from gradring.torch.embeddings.row_cache import RowCache


@dataclass(slots=True)
class Lookup:
    """What a forward was given, checked; made by `Embedding.lookup`.

    Attributes:
        layer: Whose rows.
        ids: As they were given.
        offsets: Where bags begin, or ``None``.
        weights: One for each id, or ``None``.
        flat: The ids, on the CPU; maybe the caller's memory.
        is_training: Gradients of the rows are wanted.
    """

    layer: Embedding
    ids: torch.Tensor
    offsets: torch.Tensor | None
    weights: torch.Tensor | None
    flat: Ids
    is_training: bool

    def output(self, rows: torch.Tensor, is_real: Any) -> torch.Tensor:
        """Return what forward does.

        Args:
            rows: One for each id, of zeros where it is padding; becomes a leaf.
            is_real: Which ids are no padding; ``None``: all.
        """
        layer = self.layer
        if self.is_training:
            chosen = slice(None) if is_real is None else is_real
            layer.listen_to(rows, self.flat[chosen].copy(), chosen)  # Theirs may be reused.
        if layer.pooling is None:
            # A copy: unlike a leaf it may be changed in place.
            return rows.clone().view(*self.ids.shape, layer.dim)
        places, padding = torch.arange(len(self.flat)), None
        if is_real is not None:
            padding = int(np.flatnonzero(~is_real)[0])
            places[torch.from_numpy(~is_real)] = padding
        offsets, weights = self.offsets, self.weights
        if offsets is None:  # As torch does it, which takes no bags of no ids.
            bags, each = self.ids.shape
            offsets = torch.arange(bags) * each
        return functional.embedding_bag(
            places.to(rows.device), rows, offsets.to(rows.device),
            mode=layer.pooling, padding_idx=padding,
            per_sample_weights=None if weights is None else weights.reshape(-1),
        )  # fmt: skip


class _Wanted:
    """The rows that a layer needs for some lookups.

    Attributes:
        layer: The layer.
        ids: Those that its table is asked for.
        is_real: For each lookup which ids are no padding; ``None``: all.
    """

    def __init__(self, layer: Embedding, flats: Sequence[Ids], ahead: int) -> None:
        self.layer = layer
        self.is_real = [layer.is_real(flat) for flat in flats]
        real = [
            flat if is_real is None else flat[is_real]
            for flat, is_real in zip(flats, self.is_real, strict=True)
        ]
        self._counts = [len(ids) for ids in real]
        self.ids = real[0] if len(real) == 1 else np.concatenate(real)
        if layer.cache is not None:
            self._distinct, inverse = np.unique(self.ids, return_inverse=True)
            self._inverse = inverse.reshape(-1)
            self.ids = layer.cache.missing(self._distinct, ahead)

    def rows(self, pulled: Array) -> list[torch.Tensor]:
        """Return one row for each id of each lookup, of zeros where it is padding.

        Args:
            pulled: Those of `ids`.
        """
        cache = self.layer.cache
        if cache is None:
            found = torch.from_numpy(pulled)
        else:
            slots = cache.bring(self._distinct, lambda _: pulled)
            found = cache.weights[slots[torch.from_numpy(self._inverse).to(slots.device)]]
        parts = [found] if len(self._counts) == 1 else torch.split_with_sizes(found, self._counts)
        return [
            part if is_real is None else _spread(part, is_real)
            for part, is_real in zip(parts, self.is_real, strict=True)
        ]


def look_up(lookups: Sequence[Lookup]) -> list[torch.Tensor]:
    """Return their outputs; the rows of all come in one round trip for each optimizer.

    Raises:
        TimedOut: As `ModeTable.pull`, and so for PeerLost and Closed.
    """
    if len(lookups) == 1:  # A layer by itself: gathering would cost as much as its rows.
        (only,) = lookups
        needed = _Wanted(only.layer, [only.flat], 0)
        (rows,) = needed.rows(only.layer.table.pull_flat(needed.ids))
        return [only.output(rows, needed.is_real[0])]
    of_layers = _by_layer((lookup.layer, place) for place, lookup in enumerate(lookups))
    wanted = [
        _Wanted(layer, [lookups[place].flat for place in places], 0) for layer, places in of_layers
    ]
    attach_alone(each.layer for each in wanted)
    pulled = pull_together([(each.layer.table, each.ids) for each in wanted])
    outputs: dict[int, torch.Tensor] = {}
    for each, (_, places), arrays in zip(wanted, of_layers, pulled, strict=True):
        for place, rows, is_real in zip(places, each.rows(arrays), each.is_real, strict=True):
            outputs[place] = lookups[place].output(rows, is_real)
    return [outputs[place] for place in range(len(lookups))]


def prefetch(asked: Iterable[tuple[Embedding, Ids]]) -> None:
    """Begin to bring the rows of the next lookups, in one round trip for each optimizer."""
    of_layers = _by_layer(asked)
    wanted = [_Wanted(layer, flats, 1) for layer, flats in of_layers]
    attach_alone(layer for layer, _ in of_layers)
    prefetch_together([(each.layer.table, each.ids) for each in wanted])


def _by_layer(given: Iterable[tuple[Embedding, Any]]) -> list[tuple[Embedding, list[Any]]]:
    # A copy has its layer's cache: what one of them brings there the other lacks no more.
    found: dict[Embedding | RowCache, tuple[Embedding, list[Any]]] = {}
    for layer, entry in given:
        key = layer if layer.cache is None else layer.cache
        found.setdefault(key, (layer, []))[1].append(entry)
    return list(found.values())


def _spread(found: torch.Tensor, is_real: Any) -> torch.Tensor:
    rows = torch.zeros((len(is_real), *found.shape[1:]), dtype=torch.float32, device=found.device)
    rows[torch.from_numpy(is_real).to(found.device)] = found
    return rows
