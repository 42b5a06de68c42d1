"""`distributed`: makes a `torch.optim` optimizer train on all ranks, in any mode.

The optimizer keeps its identity and its class gains one in front, so schedulers, state_dict and
everything else go on to work. One that averages may go on in other ranks: it is given once more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch

from gradring.collectives.communicator import Communicator
from gradring.collectives.fusion import require_bucket_bytes
from gradring.collectives.joining import current, current_if_any, require_ranks
from gradring.compression import Compression, code_of
from gradring.errors import InvalidArgument
from gradring.modes import Async, BoundedStaleness, Geo, Hybrid, Mode, Sync
from gradring.modes.contracts import begins_together
from gradring.modes.stepping.names import require_name
from gradring.settings import config
from gradring.torch.batch_norm.following import require_common_batches
from gradring.torch.embeddings.rows import embeddings_of, make_rows
from gradring.torch.gradients import parameters
from gradring.torch.gradients.counted_steps import has_counted_steps, step_through_the_class
from gradring.torch.gradients.other_averaging import require_no_other_averaging
from gradring.torch.gradients.same_rules import FRONT, require_same_rule
from gradring.torch.gradients.sparse.exchange import names_of, sparse_ones
from gradring.torch.gradients.trained_once import require_untrained
from gradring.torch.optimizer import DistributedOptimizer
from gradring.torch.served.served_optimizer import ServedOptimizer

# Small enough that most of a model's gradients travel while backward computes the others.
BUCKET_BYTES = 4 << 20


def distributed(  # noqa: PLR0913 - all but the first two are options with a default
    optimizer: torch.optim.Optimizer,
    mode: Mode | None = None,
    *,
    model: torch.nn.Module | None = None,
    comm: Communicator | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    overlap: bool = True,
    compress: Compression | None = None,
    clip_norm: float | None = None,
    ps: Any = None,
    name: str = "model",
    timeout: float | None = None,
) -> Any:
    """Make an optimizer train on all ranks; a collective call.

    Every rank gets rank 0's initial values. What follows depends on the mode (docs/modes.md). With
    `gradring.Sync()` gradients are averaged over the ranks, in buckets that travel while backward
    still runs, and every rank does the same step: all hold the same parameters, bit for bit. When
    ``backward()`` returns, every ``.grad`` is the average (and a view of a bucket: clone it to keep
    it). State is local; load a saved one on every rank. Where servers step, state is theirs, and
    goes on from the optimizer's (docs/modes.md).

    The rows of a model's `gradring.torch.Embedding` layers follow the mode too; with
    `gradring.Sync()` in rounds, as ``gradring.Sync(via="ps")`` does.

    Args:
        optimizer: Any of `torch.optim` or one like it, with parameters on the CPU or on CUDA; on
            the CPU where the mode has servers between them. It is changed in place. One that has
            averaged gradients in a communicator that is closed by now, as after `shrink` and
            `grow`, goes on in ``comm``: its gradients are forgotten, its state stays. Make
            learning-rate schedulers after this where the mode has servers.
        mode: `gradring.Sync`, the default, `gradring.BoundedStaleness`, `gradring.Async`,
            `gradring.Geo` or `gradring.Hybrid`.
        model: Its other parameters and its buffers are shared too, errors use its names, its
            embeddings are trained, and of `torch.nn.Embedding(sparse=True)` it tells which
            gradients need no buckets (without it the first step tells).
        comm: ``None`` is the communicator that `init` made, or makes now where it is needed: in
            `gradring.Async`, `gradring.BoundedStaleness` and `gradring.Geo` only to share what of
            ``model`` servers do not hold, its buffers and frozen parameters.
        bucket_bytes: Most bytes of gradients in one operation.
        overlap: Start buckets during backward. Without it weights may be given to ``step``.
        compress: ``"bf16" "fp16" "int8"`` or ``gradring.TopK(ratio)``: gradients travel in fewer
            bytes. What that leaves out is kept, and travels with the next step's. Not sparse ones.
        clip_norm: Largest norm of all averaged gradients of the optimizer's parameters together; in
            `step` they are scaled down to it, after a `torch.amp.GradScaler` has unscaled them.
            ``grad_norm`` is what it was. Rows of embeddings are not in it: their own rule clips
            each row (``clip_norm=`` or ``clip_value=`` of `gradring.optim`).
        ps: What `gradring.ps.connect` returned; ``None`` connects where the mode needs servers.
        name: Of the model: the first part of its tables' names on the servers. Two optimizers with
            tables that are open at a time have different ones.
        timeout: Seconds that a step may wait for other workers, where servers are between them;
            ``None``: `GRADRING_TIMEOUT`, or 30.

    Returns:
        ``optimizer``, now also a `DistributedOptimizer`, or in a mode in which dense parameters go
        through servers a `gradring.torch.served.served_optimizer.ServedOptimizer`.

    Raises:
        InvalidArgument: It is distributed already, or has a scheduler where the mode has servers
            between its parameters; or an option makes no sense; or another open optimizer trains
            one of its parameters; or with `gradring.Sync()` DistributedDataParallel or FSDP average
            the same gradients.
        DeviceError: A parameter is neither on the CPU nor on CUDA, or on CUDA where the mode has
            servers between them.
        Mismatch: The ranks have different models, or the same in another order, or with
            other parameters frozen; or, where gradients are averaged, other optimizers, settings,
            options or kinds of state. Names the first difference.

    Example:
        >>> import torch, gradring as gr, gradring.torch as gt
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> with gr.init() as comm:
        ...     optimizer = gt.distributed(torch.optim.SGD(model.parameters(), lr=0.1), comm=comm)
        ...     model(torch.ones(3, 2)).mean().backward()
        ...     model.weight.grad.tolist()  # The average over all ranks.
        ...     optimizer.step()
        ...     optimizer.close()
        [[1.0, 1.0]]
    """
    require_ranks(comm)
    require_name(name)
    is_averaged = mode is None or _is_all_reduce(mode)
    _require_ready(optimizer, mode, bucket_bytes, is_averaged=is_averaged)
    _require_usable(model, compress, clip_norm, overlap, ps)
    require_common_batches(model, is_so=is_averaged or isinstance(_dense_mode(mode), Sync))
    if isinstance(optimizer, DistributedOptimizer):
        optimizer.abandon()
        torch.optim.Optimizer.zero_grad(optimizer)  # They are of a step that others have not done.
    for layer in embeddings_of(model):
        layer.require_trainable(_rows_mode(mode))
    if compress is not None and not is_averaged:
        raise InvalidArgument("compress is for gradients that ranks add up: gradring.Sync()")
    timeout = config.timeout_in_force(os.environ, timeout)
    named = parameters.optimizer_parameters(optimizer.param_groups, model)
    parameters.require_averageable(named)
    require_untrained(named)
    if is_averaged:
        require_no_other_averaging(named, model)
    if compress is not None:
        parameters.require_compressible(named)
    shared = parameters.shared_tensors(named, model)
    ranks = comm  # Whose numbers have to be the servers', and who agree on a name of their rounds.
    if comm is None:
        comm = _ranks(mode, has_more=len(shared) > len(named))
    if comm is not None and comm.world_size > 1:
        if is_averaged:
            options = {"bucket_bytes": bucket_bytes, "overlap": overlap, "compress": str(compress)}
            options |= {"clip_norm": clip_norm}
            compare = partial(require_same_rule, comm, optimizer, named, options)
            sparse = names_of(sparse_ones(optimizer, model), named)
            parameters.share(comm, shared, named, sparse=sparse, compare_more=compare)
        else:
            parameters.share(comm, shared)
    workers = None if comm is None else comm.world_size
    served = {"name": name, "workers": workers, "timeout": timeout}
    if mode is not None and not is_averaged:
        return _through_servers(
            optimizer, mode, model, clip_norm, ps=ps, comm=comm, ranks=ranks, **served
        )
    with _undone_if_it_fails(optimizer, model) as undo:
        for_rows = served | {"name": f"{name}/rows", "comm": ranks}  # First: servers may refuse.
        rows = make_rows(_rows_mode(mode), model, ps, **for_rows)
        if rows is not None:
            undo.callback(rows.driver.abandon)
        comm = current() if comm is None else comm  # It is there: only servers do without.
        gradients_comm = comm.split(0) if comm.world_size > 1 else None
        if gradients_comm is not None:
            undo.callback(gradients_comm.close)
        result = _averaging(optimizer)
        result.connect(
            comm, gradients_comm, model, clip_norm,
            bucket_bytes=bucket_bytes, overlap=overlap, compress=compress,
        )  # fmt: skip
        result.rows = rows
    return result


def _ranks(mode: Mode | None, *, has_more: bool) -> Communicator | None:
    if mode is None or begins_together(mode) or has_more:
        return current()
    # Servers give every worker all that there is, and one that comes back could not join again.
    return current_if_any()


def _is_all_reduce(mode: Mode) -> bool:
    return mode == Sync() or (isinstance(mode, Hybrid) and mode.dense == Sync())


def _dense_mode(mode: Mode | None) -> Mode | None:
    return mode.dense if isinstance(mode, Hybrid) else mode


def _rows_mode(mode: Mode | None) -> Mode:
    if isinstance(mode, Hybrid):
        return mode.sparse
    return Sync(via="ps") if mode is None or _is_all_reduce(mode) else mode


@contextlib.contextmanager
def _undone_if_it_fails(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | None
) -> Iterator[contextlib.ExitStack]:
    """Leave optimizer and layers as they were after an error, so that another call can follow."""
    with contextlib.ExitStack() as undo:
        kind, attributes = type(optimizer), dict(vars(optimizer))
        undo.callback(vars(optimizer).update, attributes)
        undo.callback(vars(optimizer).clear)
        undo.callback(setattr, optimizer, "__class__", kind)
        for layer in embeddings_of(model):
            undo.callback(layer.attachment())
        yield undo
        undo.pop_all()


def _averaging(optimizer: torch.optim.Optimizer) -> DistributedOptimizer:
    if not isinstance(optimizer, DistributedOptimizer):
        _with_front(optimizer, DistributedOptimizer)
        step_through_the_class(optimizer)
    return cast(DistributedOptimizer, optimizer)


def _with_front(optimizer: torch.optim.Optimizer, front: type[Any]) -> Any:
    kind = type(optimizer)
    optimizer.__class__ = type(f"{FRONT}{kind.__name__}", (front, kind), {})
    return optimizer


def _through_servers(
    optimizer: torch.optim.Optimizer,
    mode: Mode,
    model: torch.nn.Module | None,
    clip_norm: float | None,
    **served: Any,
) -> ServedOptimizer:
    with _undone_if_it_fails(optimizer, model) as undo:
        result = cast(ServedOptimizer, _with_front(optimizer, ServedOptimizer))
        undo.callback(lambda: result.abandon() if hasattr(result, "driver") else None)
        result.connect(mode, model, clip_norm, **served)
    return result


def _require_ready(optimizer: Any, mode: Any, bucket_bytes: int, *, is_averaged: bool) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgument(f"{type(optimizer).__name__} is not a torch.optim.Optimizer")
    if isinstance(optimizer, (DistributedOptimizer, ServedOptimizer)):
        if not isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgument(
                "this optimizer is distributed already, and its steps are servers'; make another "
                "one"
            )
        if not optimizer.is_ended:
            raise InvalidArgument(
                "this optimizer is distributed already, and its ranks are there; close() it before "
                "it goes on in others"
            )
        if not is_averaged:
            raise InvalidArgument(
                "this optimizer averages gradients between ranks; make another one for this mode"
            )
    elif "step" in vars(optimizer) and not (is_averaged and has_counted_steps(optimizer)):
        raise InvalidArgument(
            "this optimizer's step has been replaced, as learning-rate schedulers do it; make "
            "those after distributed()"
        )
    if mode is not None and not isinstance(mode, (Sync, BoundedStaleness, Async, Geo, Hybrid)):
        raise InvalidArgument(
            f"mode {mode!r} is none of gradring's Sync, BoundedStaleness, Async, Geo and Hybrid"
        )
    require_bucket_bytes(bucket_bytes)


def _require_usable(
    model: Any, compress: Compression | None, clip_norm: float | None, overlap: Any, ps: Any
) -> None:
    if not isinstance(overlap, bool):
        raise InvalidArgument(f"overlap must be True or False, got {overlap!r}")
    if ps is not None and not hasattr(ps, "dense_table"):
        raise InvalidArgument(
            f"ps is a {type(ps).__name__}; give what gr.ps.connect(...) returned, or None to have "
            "it connect"
        )
    if model is not None and not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"model is a {type(model).__name__}, not a torch.nn.Module")
    if compress is not None:
        code_of(compress)
    try:
        is_norm = clip_norm is None or clip_norm > 0
    except TypeError:
        is_norm = False
    if not is_norm:
        raise InvalidArgument(f"clip_norm must be positive, got {clip_norm!r}")
