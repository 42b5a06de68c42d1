"""What an `Embedding` refuses, and its ids: looked at before anything is sent."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch

from gradring.arrays import buffers
from gradring.errors import InvalidArgument

_SETTINGS = frozenset({"entry", "expire_after", "score_decay", "slots", "codec"})
_BAGS_DIM = 2  # Of ids without offsets.
_POOLED = {"sum": "adds up", "mean": "averages", "max": "takes the largest of"}


def require_known(name: str, pooling: Any, padding_idx: Any, settings: AbstractSet[str]) -> None:
    """Refuse a pooling that there is not, padding that is no id, and settings that no table has.

    Args:
        name: Of the layer.
        pooling: As it was given.
        padding_idx: As it was given.
        settings: Names of those of its table.

    Raises:
        InvalidArgument: There is no such pooling, id or setting.
    """
    if pooling not in (None, *_POOLED):
        raise InvalidArgument(
            f"Embedding {name!r}: pooling is 'sum', 'mean' or 'max', not {pooling!r}"
        )
    if padding_idx is not None:
        try:
            buffers.as_ids([padding_idx]).item()
        except ValueError:  # InvalidArgument, too.
            raise InvalidArgument(
                f"Embedding {name!r}: padding_idx is an id, a whole number of 64 bits; got "
                f"{padding_idx!r}"
            ) from None
    unknown = settings - _SETTINGS
    if unknown:
        raise InvalidArgument(
            f"Embedding {name!r}: {', '.join(sorted(unknown))}: there is no such setting; rows "
            "are always sparse, bags are added up with pooling='sum', averaged with 'mean' or the "
            f"largest with 'max', and a table takes {', '.join(sorted(_SETTINGS))}"
        )


def require_possible(
    name: str, pooling: str | None, ids: torch.Tensor, offsets: Any, weights: Any
) -> None:
    """Refuse what cannot be done with the rows of ids.

    Args:
        name: Of the layer.
        pooling: Its.
        ids: As they were given.
        offsets: As they were given; ``None``: not.
        weights: One for each id; ``None``: none.

    Raises:
        InvalidArgument: Offsets or weights are not for this pooling or these ids, or ids make no
            bags.
    """
    if pooling is None:
        if not (offsets is None and weights is None):
            raise InvalidArgument(
                f"Embedding {name!r} returns a row for each id: offsets are for pooling='sum', "
                "'mean' or 'max', and per_sample_weights for pooling='sum'"
            )
        return
    if offsets is None:
        if ids.dim() != _BAGS_DIM:
            raise InvalidArgument(
                f"Embedding {name!r}: ids of shape {tuple(ids.shape)} without offsets are no bags; "
                "give ids of shape (bags, ids a bag), or flat ids and offsets"
            )
    else:
        _require_offsets(name, ids, offsets)
    if weights is None:
        return
    if pooling != "sum":
        raise InvalidArgument(
            f"Embedding {name!r} {_POOLED[pooling]} rows: per_sample_weights are for pooling='sum'"
        )
    if not isinstance(weights, torch.Tensor):
        raise InvalidArgument(
            f"Embedding {name!r}: per_sample_weights are a torch tensor, not a "
            f"{type(weights).__name__}"
        )
    if weights.shape != ids.shape or weights.dtype != torch.float32:
        raise InvalidArgument(
            f"Embedding {name!r}: per_sample_weights are {weights.dtype}, of shape "
            f"{tuple(weights.shape)}; for ids of shape {tuple(ids.shape)} they are float32 of the "
            "same"
        )


def _require_offsets(name: str, ids: torch.Tensor, offsets: Any) -> None:
    # torch asks less: beyond two bags that overlap it reads what no row has.
    if ids.dim() != 1:
        raise InvalidArgument(
            f"Embedding {name!r}: with offsets ids are flat; these have shape {tuple(ids.shape)}"
        )
    if not isinstance(offsets, torch.Tensor) or offsets.dtype not in (torch.int64, torch.int32):
        kind = offsets.dtype if isinstance(offsets, torch.Tensor) else type(offsets).__name__
        raise InvalidArgument(f"Embedding {name!r}: offsets are an int64 tensor, not {kind}")
    begins = offsets.detach().cpu().numpy()
    if begins.ndim != 1:
        raise InvalidArgument(
            f"Embedding {name!r}: offsets are flat, one for each bag; these have shape "
            f"{begins.shape}"
        )
    if len(begins) and (begins[0] != 0 or begins[-1] > len(ids) or (np.diff(begins) < 0).any()):
        raise InvalidArgument(
            f"Embedding {name!r}: offsets say where in the {len(ids)} ids each bag begins: the "
            "first at 0, none before the one before it, and none beyond the ids"
        )


def ids_of(name: str, ids: Any) -> Any:
    """Return a tensor's whole numbers as flat ids on the CPU: uint64.

    Args:
        name: Of the layer.
        ids: As they were given.

    Raises:
        InvalidArgument: It is no tensor, or holds no whole numbers.
    """
    if not isinstance(ids, torch.Tensor):
        raise InvalidArgument(
            f"Embedding {name!r}: ids are a torch tensor, not a {type(ids).__name__}"
        )
    return buffers.as_ids(ids.detach().cpu(), f"Embedding {name!r}: ids").reshape(-1)
