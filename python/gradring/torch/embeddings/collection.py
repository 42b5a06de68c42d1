"""`EmbeddingCollection`: the embeddings of many features, whose rows come in one round trip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gradring.errors import InvalidArgument
from gradring.torch.embeddings.arguments import ids_of
from gradring.torch.embeddings.embedding import Embedding
from gradring.torch.embeddings.lookups import look_up, prefetch

_MOST_ARGUMENTS = 3  # Of a layer's forward.


class EmbeddingCollection(torch.nn.Module):
    """Several `Embedding` layers by the names of features, called at once.

    Each layer gives what it gives when it is called by itself, and is trained alike; only the rows
    of all come together. A layer called by itself waits for its own rows: 26 layers wait 26 times.

    With ``pooling`` in its layers it is what TorchRec calls EmbeddingBagCollection, without it
    EmbeddingCollection; some may have it and others not. Features may share a layer. Layers are
    the model's, as in a `torch.nn.ModuleList`; hooks on their own forward do not run here.

    Example:
        >>> import torch, gradring as gr, gradring.torch as gt
        >>> rule = gr.optim.Adagrad(lr=0.05)
        >>> items = gt.Embedding("item", 8, optimizer=rule, pooling="mean")
        >>> slots = gt.EmbeddingCollection(
        ...     {"user": gt.Embedding("user", 16, optimizer=rule), "bought": items, "seen": items}
        ... )
        >>> rows = slots(
        ...     {
        ...         "user": torch.tensor([7, 2**60]),
        ...         "bought": torch.tensor([[1, 2], [3, 4]]),
        ...         "seen": (torch.tensor([5, 6, 5]), torch.tensor([0, 2])),
        ...     }
        ... )
        >>> [(name, tuple(each.shape)) for name, each in rows.items()]
        [('user', (2, 16)), ('bought', (2, 8)), ('seen', (2, 8))]

    Attributes:
        features: The layer of each.
    """

    def __init__(self, features: Mapping[str, Embedding]) -> None:
        """Take layers; nothing is sent yet.

        Args:
            features: A layer for each name; of several connections, rows come one after the other.

        Raises:
            InvalidArgument: A name is no string, or what it has is no `Embedding`.
        """
        super().__init__()
        if not isinstance(features, Mapping):
            raise InvalidArgument(
                "EmbeddingCollection takes a dict of features and their layers, not a "
                f"{type(features).__name__}"
            )
        given: Mapping[Any, Any] = features
        for name, layer in given.items():
            if not (isinstance(name, str) and isinstance(layer, Embedding)):
                raise InvalidArgument(
                    f"EmbeddingCollection: feature {name!r} has a {type(layer).__name__}; a name "
                    "is a string, and has a gradring.torch.Embedding"
                )
        self.features = dict(features)
        # A ModuleDict takes no dots, and no names of its methods.
        self.layers = torch.nn.ModuleList(dict.fromkeys(features.values()))

    def forward(self, features: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return what the layers of these features do.

        Args:
            features: What each layer is called with: ids, or a tuple ``(ids, offsets)`` or ``(ids,
                offsets, per_sample_weights)``. Features that are not given are not asked for.

        Returns:
            For each feature what `Embedding.forward` returns, in the order of the collection.

        Raises:
            InvalidArgument: A feature is unknown, or as `Embedding.forward`. Nothing was asked for.
            TimedOut: As there, and so for PeerLost and Closed.
        """
        given = self._given(features)
        lookups = [self.features[name].lookup(*each) for name, each in given.items()]
        return dict(zip(given, look_up(lookups), strict=True))

    def prefetch(self, features: Mapping[str, Any]) -> None:
        """Begin to bring the rows of the next batch; a hint, see `Embedding.prefetch`.

        Args:
            features: As for `forward`; offsets and weights are not looked at.

        Raises:
            InvalidArgument: A feature is unknown, or its ids are no whole numbers.
        """
        given = self._given(features)
        layers = [(self.features[name], each[0]) for name, each in given.items()]
        prefetch([(layer, ids_of(layer.name, ids)) for layer, ids in layers])

    def _given(self, features: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        if not isinstance(features, Mapping):
            raise InvalidArgument(
                "EmbeddingCollection is called with a dict of features and their ids, not with a "
                f"{type(features).__name__}"
            )
        unknown = [name for name in features if name not in self.features]
        if unknown:
            raise InvalidArgument(
                f"EmbeddingCollection: there is no feature {', '.join(map(repr, unknown))}; it has "
                f"{', '.join(map(repr, self.features))}"
            )
        given = {}
        for name in self.features:
            if name in features:
                each = features[name]
                given[name] = each if isinstance(each, tuple) else (each,)
                if not 0 < len(given[name]) <= _MOST_ARGUMENTS:
                    raise InvalidArgument(
                        f"EmbeddingCollection: feature {name!r} has {len(given[name])} entries; "
                        "give ids, or a tuple (ids, offsets) or (ids, offsets, per_sample_weights)"
                    )
        return given

    def extra_repr(self) -> str:
        """Show the features, as `repr` of a module does."""
        return ", ".join(f"{name!r}: {layer.name!r}" for name, layer in self.features.items())
