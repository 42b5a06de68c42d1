"""Averaged gradients in the pattern of optax, which is not imported: pairs of two functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from gradring.collectives.communicator import Communicator
from gradring.collectives.fusion import require_bucket_bytes
from gradring.collectives.joining import current, require_ranks
from gradring.collectives.same_lines import require_same_lines
from gradring.compression import Compression, code_of
from gradring.errors import InvalidArgument
from gradring.jax import operations, staged
from gradring.jax.failures import wait_for_programs
from gradring.jax.functions import all_reduce
from gradring.modes import Mode, Sync
from gradring.timeouts import milliseconds

_SAME_ADVICE = (
    "begin with one rank's on every rank, params = gradring.jax.broadcast(params, comm), and the "
    "same options"
)


class GradientTransformation(NamedTuple):
    """What optax calls so: two functions without state of their own.

    Attributes:
        init: Makes the state for a tree of parameters.
        update: From gradients, state and (optional) parameters to updates and the next state.
    """

    init: Callable[..., Any]
    update: Callable[..., tuple[Any, Any]]


class LeftOut(NamedTuple):
    """State of `average_gradients` with ``compress``; each rank has its own.

    Attributes:
        residual: Float32 vector of all gradients' size: what encodings have left out so far.
    """

    residual: Any


class DistributedState(NamedTuple):
    """State of `distributed`.

    Attributes:
        average: Of `average_gradients`: ``()``, or a `LeftOut`.
        inner: Of the optimizer; the same on every rank.
    """

    average: Any
    inner: Any


def average_gradients(
    comm: Communicator | None = None,
    *,
    compress: Compression | None = None,
    bucket_bytes: int = operations.BUCKET_BYTES,
    timeout: float | None = None,
) -> GradientTransformation:
    """Make the transformation that averages gradients over all ranks, for `optax.chain`.

    Its ``update`` is a collective call, inside and outside of `jax.jit`. Ranks with batches of one
    size get the gradient of the mean loss of all batches put together.

    Args:
        comm: ``None`` is the communicator that `gradring.init` made, or makes now.
        compress: ``"bf16" "fp16" "int8"`` or ``gradring.TopK(ratio)``: float32 gradients travel in
            fewer bytes. What that leaves out is in the state, and travels with the next step's.
        bucket_bytes: Most bytes of gradients in one operation, without ``compress``.
        timeout: As for `Communicator.all_reduce`.

    Raises:
        InvalidArgument: There is no such codec, or ``bucket_bytes`` or ``timeout`` makes no sense.
    """
    require_ranks(comm)
    require_bucket_bytes(bucket_bytes)
    milliseconds(timeout)
    ranks = current() if comm is None else comm
    if compress is not None:
        return _compressed(ranks, compress, timeout)

    def init(params: Any) -> Any:
        del params
        return ()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        return all_reduce(updates, ranks, "avg", bucket_bytes=bucket_bytes, timeout=timeout), state

    return GradientTransformation(init, update)


def _compressed(
    comm: Communicator, compress: Compression, timeout: float | None
) -> GradientTransformation:
    code_of(compress)

    def init(params: Any) -> LeftOut:
        size = sum(np.size(leaf) for leaf in jax.tree_util.tree_leaves(params))
        return LeftOut(jax.numpy.zeros(size, np.float32))

    def update(updates: Any, state: LeftOut, params: Any = None) -> tuple[Any, LeftOut]:
        del params
        arrays = jax.tree_util.tree_map(jax.numpy.asarray, updates)
        paths, structure = jax.tree_util.tree_flatten_with_path(arrays)
        for path, leaf in paths:
            if leaf.dtype != np.float32:
                raise InvalidArgument(
                    f"gradient {jax.tree_util.keystr(path)} is {leaf.dtype}; only float32 can be "
                    "compressed"
                )
        leaves = [leaf for _, leaf in paths]
        size = sum(leaf.size for leaf in leaves)
        if state.residual.shape != (size,):
            raise InvalidArgument(
                f"the gradients have {size} elements, but the state is of {state.residual.size}: "
                "make it with init(params)"
            )
        if not leaves:
            return updates, state
        flat = jax.numpy.concatenate([leaf.reshape(-1) for leaf in leaves])
        operation = operations.AverageCompressed(comm, timeout, compress)
        flat, residual = staged.call(operation, [flat, state.residual])
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        parts = jax.numpy.split(flat, ends)
        averages = [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree_util.tree_unflatten(structure, averages), LeftOut(residual)

    return GradientTransformation(init, update)


def distributed(
    optimizer: Any,
    mode: Mode | None = None,
    *,
    comm: Communicator | None = None,
    compress: Compression | None = None,
    bucket_bytes: int = operations.BUCKET_BYTES,
    timeout: float | None = None,
) -> GradientTransformation:
    """Make an optimizer of optax train on all ranks: the same step on each, of averaged gradients.

    ``init`` is a collective call: it compares the parameters' bits, so that ranks which began with
    others do not stay apart unnoticed. Under `jax.jit` it cannot, and does not. ``update`` is that
    of `average_gradients`, then the optimizer's.

    Args:
        optimizer: Any of optax or one like it: an object with ``init`` and ``update``.
        mode: `gradring.Sync`, the default. Others keep parameters on servers, which step by rules
            of `gradring.optim` and not of optax: `gradring.distributed` has them (docs/jax.md).
        comm: As for `average_gradients`, and so for the others.
        compress: As there.
        bucket_bytes: As there.
        timeout: As there.

    Raises:
        InvalidArgument: It is no optimizer, the mode is none of JAX's, or an option makes no sense.
        Mismatch: From ``init``: the ranks' parameters or these options differ; names the first
            difference, on every rank. ``comm`` stays usable.
    """
    if not (callable(getattr(optimizer, "init", None)) and hasattr(optimizer, "update")):
        raise InvalidArgument(
            f"{type(optimizer).__name__} is no optimizer of optax: it has no init and update"
        )
    if mode is not None and mode != Sync():
        raise InvalidArgument(
            f"mode {mode!r}: optimizers of optax train with gradring.Sync() alone; the other modes "
            "take NumPy arrays and a rule of gradring.optim: gradring.distributed (docs/jax.md)"
        )
    average = average_gradients(comm, compress=compress, bucket_bytes=bucket_bytes, timeout=timeout)
    ranks = current() if comm is None else comm
    options = f"compress={compress}, bucket_bytes={int(bucket_bytes)}"

    def init(params: Any) -> DistributedState:
        _require_same(ranks, params, options)
        return DistributedState(average.init(params), optimizer.init(params))

    def update(
        updates: Any, state: DistributedState, params: Any = None, **extra: Any
    ) -> tuple[Any, DistributedState]:
        averages, kept = average.update(updates, state.average)
        stepped, inner = optimizer.update(averages, state.inner, params, **extra)
        return stepped, DistributedState(kept, inner)

    return GradientTransformation(init, update)


def _require_same(comm: Communicator, params: Any, options: str) -> None:
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    if comm.world_size == 1 or any(isinstance(leaf, jax.core.Tracer) for _, leaf in paths):
        return
    wait_for_programs()
    lines = [options, f"parameters {structure}", *(_line(*pair) for pair in paths)]
    require_same_lines(comm, lines, _SAME_ADVICE)


def _line(path: Any, leaf: Any) -> str:
    values = np.asarray(leaf, order="C")
    digest = hashlib.blake2b(values.reshape(-1).view(np.uint8).data, digest_size=8).hexdigest()
    shape = list(values.shape)
    return f"parameter {jax.tree_util.keystr(path)} of {values.dtype}{shape} with digest {digest}"
