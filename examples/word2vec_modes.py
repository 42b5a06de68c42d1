"""Where word2vec.py keeps its two matrices, and what a step does: one class for each way.

All of them do plain SGD or Adagrad on the sum of the losses, so with n workers a step of Sync() is
one of an n times larger batch. A batch's progress (minus its gradient, times any number) comes from
`Windows` or `Stream`.
"""

from __future__ import annotations

import argparse
from typing import Any, Protocol

import numpy as np
import torch
from skipgram import Batch
from talk import Talk
from torch import Tensor

import gradring as gr


class Model(Protocol):
    """Two matrices in training.

    Attributes:
        optimizer: What talks to servers; None where there are none.
        talk: What this thread has spent on others; threads in the background are not counted.
        inputs: float32 (words, dim), one vector for each word as a centre.
        outputs: The same for it as a context.
    """

    optimizer: Any
    talk: Talk

    @property
    def inputs(self) -> Tensor: ...

    @property
    def outputs(self) -> Tensor: ...

    def train(self, batch: Batch, lr: float, coming: Batch | None, *, with_loss: bool) -> float:
        """Do a step; `coming` is the next batch. Return the mean loss of a pair, if wanted."""

    def flush(self) -> None:
        """Make this worker's matrices what all workers have trained."""

    def close(self) -> None: ...


class Rows:
    """A matrix in this process, and the rule that changes its rows.

    Attributes:
        weights: float32 (words, dim).
        scale: What `add` wants of progress: 1, or -1 where the rule takes gradients.
    """

    def __init__(self, weights: Tensor, options: argparse.Namespace) -> None:
        self.weights = weights
        rule = gr.optim.Adagrad(lr=options.lr, eps=1e-10)
        self.local = gr.optim.LocalRows(rule, options.dim) if options.rule == "adagrad" else None
        self.scale = 1.0 if self.local is None else -1.0

    def add(self, ids: Tensor, progress: Tensor, lr: float) -> None:
        """Change the rows of ids along progress times `scale`, the same id's together."""
        if self.local is None:
            self.weights.index_add_(0, ids, progress, alpha=lr)
        else:
            self.local.step(self.weights.numpy(), ids.numpy(), progress.numpy())


class Local:
    """One process: both matrices are its own.

    Several of them, each with its part of the examples, learn as little as one that has only that
    part, but show what the machine's cores can do side by side: no mode can be faster.
    """

    optimizer: Any = None

    def __init__(self, examples: Any, words: int, options: argparse.Namespace) -> None:
        self.examples, self.talk = examples, Talk()
        random, dim = torch.Generator().manual_seed(options.seed), options.dim
        self.rows = (
            Rows((torch.rand(words, dim, generator=random) - 0.5) / dim, options),
            Rows(torch.zeros(words, dim), options),
        )
        self.inputs, self.outputs = (rows.weights for rows in self.rows)

    def train(self, batch: Batch, lr: float, coming: Batch | None, *, with_loss: bool) -> float:  # noqa: ARG002
        *progress, loss = self.progress(batch, with_loss=with_loss)
        for rows, ids, each in zip(self.rows, batch.ids, progress, strict=True):
            rows.add(ids, each, lr)
        return loss

    def progress(self, batch: Batch, **options: Any) -> tuple[Tensor, Tensor, float]:
        inputs = self.inputs.index_select(0, batch.centres)
        outputs = self.outputs.index_select(0, batch.outputs)
        scale = self.rows[0].scale
        progress: tuple[Tensor, Tensor, float] = self.examples.progress(
            batch, inputs, outputs, scale, **options
        )
        return progress

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Gathered(Local):
    """Sync(): every worker has the matrices and takes the same step with all workers' progress."""

    def __init__(self, comm: gr.Communicator, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.comm = comm
        self.everybody: list[Tensor] = []  # Progress, float32 (workers, rows of a batch, dim).

    def train(self, batch: Batch, lr: float, coming: Batch | None, *, with_loss: bool) -> float:  # noqa: ARG002
        if not self.everybody:
            workers, dim = self.comm.world_size, self.inputs.shape[1]
            self.everybody = [torch.empty(workers, len(ids), dim) for ids in batch.ids]
        # A worker's own is written where it belongs among all: nobody copies it then.
        own = tuple(each[self.comm.rank] for each in self.everybody)
        *_, loss = self.progress(batch, with_loss=with_loss, into=own)
        for rows, ids, mine, each in zip(self.rows, batch.ids, own, self.everybody, strict=True):
            with self.talk:
                all_ids = self.comm.all_gather(ids)
                self.comm.all_gather(mine, out=each)
            rows.add(all_ids.view(-1), each.view(-1, each.shape[2]), lr)
        return loss


class Replica(Local):
    """Geo(): a step of its own on a replica of all rows, and an exchange now and then."""

    def __init__(
        self, optimizer: Any, examples: Any, words: int, options: argparse.Namespace
    ) -> None:
        self.examples, self.talk = examples, Talk()
        self.optimizer = optimizer
        tables = tables_of(optimizer, options)
        self.replicas = [optimizer.replica(table) for table in tables]
        for replica in self.replicas:
            replica.slots(np.arange(words, dtype=np.uint64))  # In this order: row i is word i.
        self.inputs, self.outputs = (torch.from_numpy(r.weights) for r in self.replicas)
        self.rows = (Rows(self.inputs, options), Rows(self.outputs, options))

    def train(self, batch: Batch, lr: float, coming: Batch | None, *, with_loss: bool) -> float:
        loss = super().train(batch, lr, coming, with_loss=with_loss)
        for replica, ids in zip(self.replicas, batch.ids, strict=True):
            replica.mark(ids.numpy())
        with self.talk:
            self.optimizer.advance()
        return loss

    def flush(self) -> None:
        with self.talk:
            self.optimizer.flush()

    def close(self) -> None:
        self.optimizer.close()


class Served:
    """Async(), BoundedStaleness(), Sync(via="ps"), Hybrid(): a batch's rows come, gradients go."""

    def __init__(
        self, optimizer: Any, examples: Any, words: int, options: argparse.Namespace
    ) -> None:
        self.examples, self.talk = examples, Talk()
        self.optimizer = optimizer
        self.words = words
        self.tables = tables_of(optimizer, options)
        self._falls = options.rule == "sgd"  # Then gradients carry the rate, which falls.
        # In rounds servers take the mean of all workers' gradients, where the sum is wanted.
        is_mean = isinstance(optimizer, gr.modes.rounds.RoundOptimizer)
        self._scale = -1.0 * (optimizer.workers if is_mean else 1)

    def train(self, batch: Batch, lr: float, coming: Batch | None, *, with_loss: bool) -> float:
        with self.talk:
            rows = [torch.from_numpy(table.pull_flat(ids))
                    for table, ids in zip(self.tables, _flat(batch), strict=True)]  # fmt: skip
        if coming is not None:
            for table, ids in zip(self.tables, _flat(coming), strict=True):
                table.prefetch(ids)
        scale = self._scale * (lr if self._falls else 1)
        *gradients, loss = self.examples.progress(batch, *rows, scale, with_loss=with_loss)
        pushes = [
            (table, ids, each.numpy())
            for table, ids, each in zip(self.tables, _flat(batch), gradients, strict=True)
        ]
        with self.talk:
            self.optimizer.step(rows=pushes)
        return loss

    @property
    def inputs(self) -> Tensor:
        return self._whole(0)

    @property
    def outputs(self) -> Tensor:
        return self._whole(1)

    def _whole(self, table: int) -> Tensor:
        return torch.from_numpy(self.tables[table].pull(np.arange(self.words)))

    def flush(self) -> None:
        with self.talk:
            self.optimizer.flush()

    def close(self) -> None:
        self.optimizer.close()


def _flat(batch: Batch) -> list[Any]:
    return [ids.numpy().view(np.uint64) for ids in batch.ids]


def tables_of(optimizer: Any, options: argparse.Namespace) -> list[Any]:
    uniform, zeros = gr.init.Uniform(0.5 / options.dim), gr.init.Constant(0)
    rule = gr.optim.SGD(lr=1.0)  # Of gradients that carry the rate.
    if options.rule == "adagrad":
        rule = gr.optim.Adagrad(lr=options.lr, eps=1e-10)
    return [
        optimizer.sparse_table(name, options.dim, rule, init=init, seed=options.seed)
        for name, init in (("word2vec/input", uniform), ("word2vec/output", zeros))
    ]


def mode_of(options: argparse.Namespace) -> Any:
    """The mode of --mode, from those of its options alone."""
    if options.mode == "geo":
        outer = {"sum": gr.Sum(), "mean": gr.Mean(), "nesterov": gr.Nesterov()}[options.outer]
        return gr.Geo(options.k_steps, outer, options.rare_every)
    return {
        "sync-ps": gr.Sync(via="ps"),
        "bounded": gr.BoundedStaleness(options.staleness),
        "async": gr.Async(),
        # Nothing here is dense: rows go as in async, and all workers have equally many steps.
        "hybrid": gr.Hybrid(dense=gr.Sync(), sparse=gr.Async()),
    }[options.mode]


def make_model(
    options: argparse.Namespace, comm: gr.Communicator, examples: Any, words: int
) -> Model:
    """The model of --mode."""
    if options.mode in ("local", "apart"):
        return Local(examples, words, options)
    if options.mode == "sync":
        return Gathered(comm, examples, words, options)
    mode = mode_of(options)
    optimizer = gr.distributed([], None, mode=mode, name="word2vec", comm=comm)
    return (Replica if options.mode == "geo" else Served)(optimizer, examples, words, options)
