"""`Embedding`: a layer whose rows live on parameter servers.

Forward asks for the rows and makes a leaf of them; what has a gradient after backward is pushed: by
the optimizer's step, in its mode, or, where the layer was given to no optimizer, at the end of
backward. Equal ids travel once, both ways: the client fans rows out and adds gradients up. On a
device the rows that are used most stay there (`gradring.torch.embeddings.row_cache`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from gradring.arrays import buffers
from gradring.errors import InvalidArgument
from gradring.modes.contracts import Mode
from gradring.modes.parameters.row_gradients import RowGradients
from gradring.modes.parameters.rows import merge
from gradring.modes.parameters.tables import ModeTable
from gradring.modes.stepping.optimizer import ModeOptimizer
from gradring.optim.state import require_successor
from gradring.torch.embeddings.alone import Alone, attach_alone
from gradring.torch.embeddings.arguments import ids_of, require_known, require_possible
from gradring.torch.embeddings.lookups import Lookup, look_up, prefetch
from gradring.torch.embeddings.row_cache import RowCache, is_subtracted, require_allowed
from gradring.torch.embeddings.row_leaves import RowLeaves
from gradring.torch.gradients.backward import at_the_end_of_backward


class Embedding(torch.nn.Module):
    """`torch.nn.Embedding`, or `EmbeddingBag` with ``pooling``, over any number of ids.

    It has no parameters: give the whole model to ``gradring.torch.distributed(optimizer, mode,
    model=model)``, whose mode then holds for the rows too. Without that, gradients are pushed as
    in `gradring.Async` at the end of each backward pass; one that fails pushes none. In evaluation
    (``eval()``, or without gradients) rows are read only.

    ``layer.requires_grad_(False)`` freezes the rows. What freezes the parameters of a whole model,
    such as ``model.requires_grad_(False)``, does not reach them, for they are none; this does:
    ``model.apply(lambda module: module.requires_grad_(False))``.

    Example:
        >>> import torch, gradring as gr, gradring.torch as gt
        >>> users = gt.Embedding("user", 4, optimizer=gr.optim.SGD(lr=0.5))
        >>> rows = users(torch.tensor([7, 2**60, 7]))
        >>> rows.shape
        torch.Size([3, 4])
        >>> rows.sum().backward()

    With a ``device`` the rows, the output and the gradients are there, and rows may be used for
    ``cache_age`` steps before servers are asked again: by so many steps less one may a row be
    older than the mode says. `flush` ends that: the next rows are the servers'. With 1, the
    default, nothing is older. Ids may be anywhere; they come to the CPU.

    A deep copy of a layer that has its rows, as `torch.optim.swa_utils.AveragedModel` holds one,
    reads the same rows, as they are now, and cannot be trained. The layer cannot be pickled: save
    the model's ``state_dict()``, and the rows with ``gradring.ps.current().save(path)``.

    Attributes:
        name: Of the table, the same on every worker.
        dim: Floats a row.
        cache: The rows on the device; ``None`` without ``device``.
        ps: As it was given.
    """

    def __init__(  # noqa: PLR0913 - what a table and a layer can be told
        self,
        name: str,
        dim: int,
        *,
        optimizer: Any,
        init: Any = None,
        seed: int = 0,
        pooling: Literal["sum", "mean", "max"] | None = None,
        padding_idx: int | None = None,
        ps: Any = None,
        device: Any = None,
        cache_rows: int = 1 << 16,
        cache_age: int = 1,
        **settings: Any,
    ) -> None:
        """Say what the rows are; nothing is sent yet.

        Args:
            name: Of the table.
            dim: Floats a row.
            optimizer: Rule of `gradring.optim` for the rows; with `gradring.Geo` the local one.
            init: Where new rows start, such as ``gr.init.Uniform(0.01)``; zeros by default.
            seed: Of ``init``.
            pooling: Add up or average the rows of each bag of ids, or take their largest numbers,
                each of which trains the row that it is of; an empty bag gives zeros.
            padding_idx: An id whose row is zero, is never trained, and counts in no mean or "max".
            ps: What `gradring.ps.connect` returned, if it goes to no optimizer; ``None`` connects.
            device: ``"cuda"`` or another of torch's; ``None``: the CPU, without a cache.
            cache_rows: Rows that the device keeps; more where one batch has more.
            cache_age: Steps in which a row may be used that servers were asked for once. With
                ``optim.SGD(lr)`` and `gradring.Async` the worker sees its own gradients all the
                same.
            **settings: ``entry``, ``expire_after``, ``score_decay``, ``slots`` and ``codec`` of
                `gradring.ps.ParameterServer.sparse_table`.

        Raises:
            InvalidArgument: There is no such pooling or setting, the padding is no id, or the cache
                makes no sense.
        """
        super().__init__()
        require_known(name, pooling, padding_idx, settings.keys())
        if device is None and cache_age != 1:
            raise InvalidArgument(
                f"Embedding {name!r}: cache_age={cache_age} is for rows that a device keeps, and "
                "without device= none does"
            )
        self.name = name
        self.dim = dim
        self.pooling = pooling
        self.padding_idx = padding_idx
        self._optimizer = optimizer
        self._init = init
        self._seed = seed
        self.ps = ps
        self.cache: RowCache | None = None
        self._cache_age = cache_age
        if device is not None:
            self.cache = RowCache(dim, cache_rows, cache_age, torch.device(device))
        self._is_reader = False  # A copy: it reads what another layer trains.
        self._settings = settings
        self._driver: ModeOptimizer | None = None
        self._table: ModeTable | None = None
        self._alone: Alone | None = None
        self._leaves = RowLeaves()

    def require_trainable(self, mode: Mode) -> None:
        """Refuse a mode that cannot train the rows, before anybody is asked for a table.

        Raises:
            InvalidArgument: It does not allow rows as old as the cache may have them, or a setting
                of the table; this is a copy, which only reads; or another optimizer trains it.
        """
        if self._is_reader:
            raise InvalidArgument(
                f"Embedding {self.name!r} is a copy of a layer that trains its rows; copy a model "
                "before distributed() to train both"
            )
        if self._driver is not None and not self._driver.is_closed:
            raise InvalidArgument(
                f"Embedding {self.name!r} is trained by optimizer {self._driver.name!r} already; "
                "give model= to one optimizer only"
            )
        require_allowed(self.name, self._cache_age, self._settings, mode)

    def attach(self, driver: ModeOptimizer, alone: Alone | None = None) -> None:
        """Train the rows by this optimizer's mode from now on; called by `distributed`.

        Args:
            driver: The optimizer.
            alone: What steps it at the end of backward; ``None``: `distributed`'s optimizer does.
        """
        self._driver, self._alone = driver, alone
        self._table = driver.sparse_table(
            self.name, self.dim, self._optimizer, init=self._init, seed=self._seed, **self._settings
        )

    def attachment(self) -> Callable[[], None]:
        """Return what undoes every `attach` that comes after this."""
        before = {name: vars(self)[name] for name in ("_driver", "_alone", "_table")}
        return lambda: vars(self).update(before)

    def set_optimizer(self, optimizer: Any) -> None:
        """Go on with other settings of the rows' rule, such as a learning rate.

        Args:
            optimizer: The same rule of `gradring.optim`; only its numbers differ.

        Raises:
            InvalidArgument: It is another rule, or keeps another state; nothing was sent.
        """
        if self._table is not None:
            self._table.set_rule(optimizer)
        else:
            require_successor(self._optimizer, optimizer)
        self._optimizer = optimizer

    def requires_grad_(self, requires_grad: bool = True) -> Embedding:
        """Freeze the rows, or train them again.

        What backward has brought before is pushed all the same, as of a parameter that is frozen.

        Args:
            requires_grad: Whether they are trained; False: they are read only.
        """
        self._leaves.is_frozen = not requires_grad
        return super().requires_grad_(requires_grad)

    @property
    def embedding_dim(self) -> int:
        """Floats a row, as `torch.nn.Embedding` calls them."""
        return self.dim

    @property
    def table(self) -> ModeTable:
        """The table as the mode reads it."""
        if self._table is None:
            attach_alone([self])
        assert self._table is not None
        return self._table

    @property
    def has_table(self) -> bool:
        """Whether something trains the rows, or did."""
        return self._table is not None

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the rows of ids, or their sums, means or largest numbers.

        Args:
            ids: Int64, any shape; with ``pooling`` (bags, ids a bag), or flat with ``offsets``.
            offsets: Where each bag begins, as in `torch.nn.EmbeddingBag`.
            per_sample_weights: Float32 of ids' shape, where the rows are: one factor for each id,
                which gets a gradient too. With ``pooling="sum"``.

        Returns:
            Float32: ``ids.shape + (dim,)``, or (bags, dim).

        Raises:
            InvalidArgument: Ids are no whole numbers, or no bags; offsets or weights are not for
                this ``pooling`` or these ids; or gradients are wanted of a copy, which only reads.
                Nothing was asked for.
            TimedOut: As `ModeTable.pull`, and so for PeerLost and Closed.
        """
        return look_up([self.lookup(ids, offsets, per_sample_weights)])[0]

    def lookup(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> Lookup:
        """Check what `forward` was given.

        Raises:
            InvalidArgument: As there.
        """
        is_training = self.training and torch.is_grad_enabled() and not self._leaves.is_frozen
        flat = ids_of(self.name, ids)
        require_possible(self.name, self.pooling, ids, offsets, per_sample_weights)
        if is_training and self._is_reader:
            raise InvalidArgument(
                f"Embedding {self.name!r} is a copy of a layer that trains its rows, and only "
                "reads them: call eval() or requires_grad_(False), or run it under torch.no_grad()"
            )
        return Lookup(self, ids, offsets, per_sample_weights, flat, is_training)

    def prefetch(self, ids: torch.Tensor) -> None:
        """Begin to bring the rows of the next batch; a hint, see `ModeTable.prefetch`.

        Args:
            ids: Int64, any shape, on any device; may be written over at once.

        Raises:
            InvalidArgument: They are no whole numbers.
        """
        prefetch([(self, ids_of(self.name, ids))])

    def is_real(self, flat: Any) -> Any:
        """Return which ids are no padding; ``None``: all."""
        if self.padding_idx is None:
            return None
        is_real = flat != buffers.as_ids([self.padding_idx])[0]
        return None if is_real.all() else is_real

    def gradients(self) -> list[torch.Tensor]:
        """Return what backward has brought since the last time, one tensor for each forward."""
        return self._leaves.gradients()

    def row_gradients(self) -> list[RowGradients]:
        """Return what backward has brought since the last step, for the next; see `end_step`."""
        return [(self.table, ids, grads) for ids, grads in self._leaves.arrays()]

    def end_step(self, given: list[RowGradients]) -> None:
        """Forget what `row_gradients` gave: a step was done with it, and not to be repeated."""
        self.forget_gradients()
        self._age_cache(given)

    def _age_cache(self, given: list[RowGradients]) -> None:
        if self.cache is not None:
            is_kept_on = self._cache_age > 1 and not self._settings
            if given and is_kept_on and is_subtracted(self.table.rule, self._driver):
                ids, grads = (np.concatenate([entry[part] for entry in given]) for part in (1, 2))
                distinct, sums = merge(ids, grads, self.dim)
                self.cache.descend(distinct, sums, self.table.rule.lr)
            self.cache.advance()

    def forget_gradients(self) -> None:
        """Forget what backward has brought; `zero_grad` does it."""
        self._leaves.forget()

    def take_from_backward(self) -> list[RowGradients]:
        """Return what the pass that ends now has brought, and forget it; for who pushes it."""
        rows = [(self.table, *taken) for taken in self._leaves.take_from_backward()]
        if rows:
            self._age_cache(rows)
        return rows

    def flush(self) -> None:
        """Wait until the servers have applied all gradients of this worker.

        On a device the next rows are what servers then have.

        Raises:
            TimedOut: Servers, or workers that the mode waits for, did not answer; as the flush of
                the optimizer that trains the layer, and so for PeerLost and Closed.
        """
        if self._driver is not None:
            self._driver.flush()
        self.forget_rows()

    def forget_rows(self) -> None:
        """Ask servers for every row anew, where a device has kept some."""
        if self.cache is not None:
            self.cache.clear()

    def listen_to(self, leaf: torch.Tensor, ids: Any, chosen: Any) -> None:
        """Keep the gradients that backward brings to a leaf.

        Args:
            leaf: Rows.
            ids: Of those that are trained.
            chosen: Which of the rows these are.
        """
        leaf.requires_grad_()

        def listen(trained: torch.Tensor) -> None:
            self._leaves.note(trained, ids, chosen)
            if self._alone is not None:
                at_the_end_of_backward(self._alone)

        hooked: Any = leaf  # PyTorch gives this method no types.
        hooked.register_post_accumulate_grad_hook(listen)

    def __deepcopy__(self, memo: dict[int, Any]) -> Embedding:
        """Return a layer that reads the same rows; one of its own where there are none yet."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        # No connection can be copied, and the cache ages with the layer that trains.
        is_reader = self._table is not None
        shared = {"ps", "_driver", "_alone", "_table"} | ({"cache"} if is_reader else set())
        state = vars(self) | {"_leaves": self._leaves.emptied(), "_is_reader": is_reader}
        for name, value in state.items():
            vars(made)[name] = value if name in shared else copy.deepcopy(value, memo)
        return made

    def __copy__(self) -> Embedding:
        """Return another name for the same layer, as of any module."""
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse where there is a connection: what is saved would not have the rows."""
        if self._table is None and self.ps is None:
            return super().__reduce_ex__(protocol)
        raise TypeError(
            f"Embedding {self.name!r} cannot be pickled, its rows are on servers; save the model's "
            "state_dict(), and the rows with gradring.ps.current().save(path)"
        )

    def extra_repr(self) -> str:
        """Show the table, as `repr` of a module does."""
        pooling = "" if self.pooling is None else f", pooling={self.pooling!r}"
        return f"{self.name!r}, {self.dim}, optimizer={self._optimizer}{pooling}"
