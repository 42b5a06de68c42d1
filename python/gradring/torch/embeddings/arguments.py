"""What an `Embedding` refuses, and its ids: looked at before anything is sent."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

import torch

from gradring.arrays import buffers
from gradring.errors import InvalidArgument

_SETTINGS = frozenset({"entry", "expire_after", "score_decay", "slots", "codec"})
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
        InvalidArgument: Offsets or weights are not for this pooling, or weights not for these ids.
    """
    if pooling is None and not (offsets is None and weights is None):
        raise InvalidArgument(
            f"Embedding {name!r} returns a row for each id: offsets are for pooling='sum', "
            "'mean' or 'max', and per_sample_weights for pooling='sum'"
        )
    if weights is None:
        return
    if pooling is not None and pooling != "sum":
        raise InvalidArgument(
            f"Embedding {name!r} {_POOLED[pooling]} rows: per_sample_weights are for pooling='sum'"
        )
    if weights.shape != ids.shape or weights.dtype != torch.float32:
        raise InvalidArgument(
            f"Embedding {name!r}: per_sample_weights are {weights.dtype}, of shape "
            f"{tuple(weights.shape)}; for ids of shape {tuple(ids.shape)} they are float32 of the "
            "same"
        )


def ids_of(ids: Any) -> Any:
    """Return a tensor's whole numbers as flat ids on the CPU: uint64.

    Raises:
        InvalidArgument: It is no tensor, or holds no whole numbers.
    """
    if not isinstance(ids, torch.Tensor):
        raise InvalidArgument(f"Embedding: ids are a torch tensor, not {type(ids).__name__}")
    return buffers.as_ids(ids.detach().cpu()).reshape(-1)
