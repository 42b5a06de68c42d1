"""`Embedding`: a layer whose rows live on parameter servers.

Forward asks for the rows and makes a leaf of them; what has a gradient after backward is pushed: by
the optimizer's step, in its mode, or, where the layer was given to no optimizer, at the end of
backward. Equal ids travel once, both ways: the client fans rows out and adds gradients up.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional

from gradring.errors import InvalidArgument
from gradring.modes.asynchronous import AsyncOptimizer
from gradring.modes.optimizer import ModeOptimizer, ModeTable, RowGradients
from gradring.modes.rows import as_ids
from gradring.torch.backward import at_the_end_of_backward


class Embedding(torch.nn.Module):
    """`torch.nn.Embedding`, or `EmbeddingBag` with ``pooling``, over any number of ids.

    It has no parameters: give the whole model to ``gradring.torch.distributed(optimizer, mode,
    model=model)``, whose mode then holds for the rows too. Without that, gradients are pushed as
    in `gradring.Async` at the end of each backward pass. In evaluation (``eval()``, or without
    gradients) rows are read only.

    Example:
        >>> import torch, gradring as gr, gradring.torch as gt
        >>> users = gt.Embedding("user", 4, optimizer=gr.optim.SGD(lr=0.5))
        >>> rows = users(torch.tensor([7, 2**60, 7]))
        >>> rows.shape
        torch.Size([3, 4])
        >>> rows.sum().backward()

    Attributes:
        name: Of the table, the same on every worker.
        dim: Floats a row.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Any,
        init: Any = None,
        seed: int = 0,
        pooling: Literal["sum", "mean"] | None = None,
        padding_idx: int | None = None,
        ps: Any = None,
    ) -> None:
        """Say what the rows are; nothing is sent yet.

        Args:
            name: Of the table.
            dim: Floats a row.
            optimizer: Rule of `gradring.optim` for the rows; with `gradring.Geo` the local one.
            init: Where new rows start, such as ``gr.init.Uniform(0.01)``; zeros by default.
            seed: Of ``init``.
            pooling: Add up, or average, the rows of each bag of ids.
            padding_idx: An id whose row is zero, is never trained, and does not count in a mean.
            ps: What `gradring.ps.connect` returned, if it goes to no optimizer; ``None`` connects.

        Raises:
            InvalidArgument: There is no such pooling.
        """
        super().__init__()
        if pooling not in (None, "sum", "mean"):
            raise InvalidArgument(
                f"Embedding {name!r}: pooling is 'sum' or 'mean', not {pooling!r}"
            )
        self.name = name
        self.dim = dim
        self.pooling = pooling
        self.padding_idx = padding_idx
        self._optimizer = optimizer
        self._init = init
        self._seed = seed
        self._ps = ps
        self._driver: ModeOptimizer | None = None
        self._table: ModeTable | None = None
        self._is_alone = False
        self._ready: list[tuple[Any, torch.Tensor]] = []  # Ids, and the leaf with their gradients.

    def attach(self, driver: ModeOptimizer) -> None:
        """Train the rows by this optimizer's mode from now on; called by `distributed`."""
        self._driver = driver
        self._is_alone = False
        self._table = driver.sparse_table(
            self.name, self.dim, self._optimizer, init=self._init, seed=self._seed
        )

    @property
    def table(self) -> ModeTable:
        """The table as the mode reads it."""
        if self._table is None:
            self.attach(AsyncOptimizer([], None, self._ps, name=f"{self.name}/alone", workers=1))
            self._is_alone = True
        assert self._table is not None
        return self._table

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the rows of ids, or their sums or means.

        Args:
            ids: Int64, any shape; with ``pooling`` (bags, ids a bag), or flat with ``offsets``.
            offsets: Where each bag begins, as in `torch.nn.EmbeddingBag`.
            per_sample_weights: One factor for each id, with ``pooling="sum"``.

        Returns:
            Float32: ``ids.shape + (dim,)``, or (bags, dim).
        """
        flat = as_ids(ids.detach().numpy())
        is_real = self._is_real(flat)
        leaf = torch.from_numpy(self._rows(flat, is_real))
        if self.training and torch.is_grad_enabled():
            self._listen(leaf, flat, is_real)
        if self.pooling is None:
            # A copy: unlike a leaf it may be changed in place.
            return leaf.clone().view(*ids.shape, self.dim)
        places, padding = torch.arange(len(flat)), None
        if is_real is not None:
            padding = int(np.flatnonzero(~is_real)[0])
            places[torch.from_numpy(~is_real)] = padding
        return functional.embedding_bag(
            places.view(ids.shape), leaf, offsets, mode=self.pooling, padding_idx=padding,
            per_sample_weights=per_sample_weights,
        )  # fmt: skip

    def prefetch(self, ids: torch.Tensor) -> None:
        """Begin to bring the rows of the next batch; see `ModeTable.prefetch`."""
        flat = as_ids(ids.detach().numpy())
        is_real = self._is_real(flat)
        self.table.prefetch(flat if is_real is None else flat[is_real])

    def _is_real(self, flat: Any) -> Any:
        """Return which ids are no padding; ``None``: all."""
        if self.padding_idx is None:
            return None
        is_real = flat != as_ids([self.padding_idx])[0]
        return None if is_real.all() else is_real

    def _rows(self, flat: Any, is_real: Any) -> Any:
        if is_real is None:
            return self.table.pull_flat(flat)
        rows = np.zeros((len(flat), self.dim), np.float32)
        rows[is_real] = self.table.pull_flat(flat[is_real])
        return rows

    def take_gradients(self) -> list[RowGradients]:
        """Return what backward has brought since the last time, and forget it."""
        ready, self._ready = self._ready, []
        result: list[RowGradients] = []
        for (ids, is_real), leaf in ready:
            assert leaf.grad is not None
            grads = leaf.grad.numpy()
            chosen = slice(None) if is_real is None else is_real
            result.append((self.table, ids[chosen], grads[chosen]))
        return result

    def forget_gradients(self) -> None:
        """Forget what backward has brought; `zero_grad` does it."""
        self._ready = []

    def end_backward(self) -> None:
        """Push, where no optimizer does."""
        if self._is_alone and self._driver is not None:
            self._driver.step(None, rows=self.take_gradients())

    def flush(self) -> None:
        """Wait until the servers have applied all gradients of this worker."""
        if self._driver is not None:
            self._driver.flush()

    def _listen(self, leaf: torch.Tensor, ids: Any, is_real: Any) -> None:
        leaf.requires_grad_()

        def listen(trained: torch.Tensor) -> None:
            if not any(trained is known for _, known in self._ready):
                self._ready.append(((ids, is_real), trained))
            if self._is_alone:
                at_the_end_of_backward(self)

        hooked: Any = leaf  # PyTorch gives this method no types.
        hooked.register_post_accumulate_grad_hook(listen)

    def extra_repr(self) -> str:
        """Show the table, as `repr` of a module does."""
        pooling = "" if self.pooling is None else f", pooling={self.pooling!r}"
        return f"{self.name!r}, {self.dim}, optimizer={self._optimizer}{pooling}"


def embeddings_of(model: torch.nn.Module | None) -> list[Embedding]:
    """Return a model's layers with rows on servers."""
    if model is None:
        return []
    return [module for module in model.modules() if isinstance(module, Embedding)]
