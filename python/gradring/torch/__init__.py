"""PyTorch: one call makes any optimizer of a script train on all ranks.

`gradients` are on their way to other ranks, `batch_norm` has means over all of them, `embeddings`
have rows on servers, `served` is the optimizer over servers, `state` is what one rank has for all.
Importing it also registers the backend "gradring" of torch.distributed (docs/torch.md).

Needs PyTorch: ``pip install 'gradring[torch]'``. Nothing outside this package imports it.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "gradring.torch needs PyTorch: pip install 'gradring[torch]'", name="torch"
    ) from None

from gradring.torch import c10d as _c10d
from gradring.torch.batch_norm.conversion import sync_batch_norm
from gradring.torch.batch_norm.layer import SyncBatchNorm
from gradring.torch.c10d.untraced import break_graphs_at as _break_graphs_at
from gradring.torch.embeddings.collection import EmbeddingCollection
from gradring.torch.embeddings.embedding import Embedding
from gradring.torch.factory import distributed
from gradring.torch.hook import CompressedGradients, compressed_gradients
from gradring.torch.optimizer import DistributedOptimizer
from gradring.torch.sampler import Sampler
from gradring.torch.state.broadcasting import broadcast_state

__all__ = [
    "CompressedGradients",
    "DistributedOptimizer",
    "Embedding",
    "EmbeddingCollection",
    "Sampler",
    "SyncBatchNorm",
    "broadcast_state",
    "compressed_gradients",
    "distributed",
    "sync_batch_norm",
]

_c10d.register()
for _kind in (Embedding, EmbeddingCollection):
    _break_graphs_at(_kind, f"the rows of gradring.torch.{_kind.__name__} come from servers")
_break_graphs_at(SyncBatchNorm, "the means of gradring.torch.SyncBatchNorm come from all ranks")
