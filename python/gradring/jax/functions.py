"""What users call: collectives over pytrees of arrays."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from gradring import _core
from gradring.collectives import calling
from gradring.collectives.communicator import Communicator
from gradring.collectives.fusion import require_bucket_bytes
from gradring.collectives.joining import current, require_ranks
from gradring.dtypes import DTYPE_CODES, code_of
from gradring.errors import InvalidArgument
from gradring.jax import operations, staged
from gradring.timeouts import milliseconds


def all_reduce(
    tree: Any,
    comm: Communicator | None = None,
    op: str = "sum",
    *,
    bucket_bytes: int = operations.BUCKET_BYTES,
    timeout: float | None = None,
) -> Any:
    """Combine every leaf element by element over all ranks; a collective call.

    Leaves of one dtype travel together, as in `Communicator.all_reduce_many`, and the results have
    its bits. Its derivative, for ``sum`` and ``avg``, is the same operation on cotangents: that of
    the sum of all ranks' losses.

    Args:
        tree: A pytree of arrays, of the same shapes and dtypes on every rank; not written.
        comm: ``None`` is the communicator that `gradring.init` made, or makes now.
        op: As for `Communicator.all_reduce`.
        bucket_bytes: As for `Communicator.all_reduce_many`.
        timeout: As for `Communicator.all_reduce`.

    Returns:
        A tree of new `jax.Array` like ``tree``, each on the devices of the leaf it comes from.

    Raises:
        InvalidArgument: A leaf has a dtype that cannot be reduced so, is on other processes'
            devices or was donated; or ``op`` is none.
        Mismatch: As `Communicator.all_reduce`, and so for PeerLost, TimedOut and Closed. In a
            compiled program JAX raises them as JaxRuntimeError (`gradring.jax.own_errors`).
    """
    comm = _ranks(comm, timeout)
    code = calling.reduction(op, "auto", None)["reduce_op"]
    require_bucket_bytes(bucket_bytes)
    return _call(operations.AllReduce(comm, timeout, op, bucket_bytes), tree, code)


def broadcast(
    tree: Any, comm: Communicator | None = None, root: int = 0, *, timeout: float | None = None
) -> Any:
    """Give every rank the root's leaves; a collective call.

    Args:
        tree: A pytree of arrays, of the same shapes and dtypes on every rank; not written.
        comm: As for `all_reduce`.
        root: Whose leaves they are.
        timeout: As for `all_reduce`.

    Returns:
        As `all_reduce`.

    Raises:
        InvalidArgument: As `all_reduce`, or ``root`` is no rank.
        Mismatch: As `all_reduce`, and so for its other errors.
    """
    comm = _ranks(comm, timeout)
    root = calling.whole_number("broadcast: root", root)
    if not 0 <= root < comm.world_size:
        raise InvalidArgument(f"broadcast: root {root} is not one of 0..{comm.world_size - 1}")
    return _call(operations.Broadcast(comm, timeout, root), tree)


def all_gather(
    tree: Any,
    comm: Communicator | None = None,
    *,
    tiled: bool = False,
    timeout: float | None = None,
) -> Any:
    """Give every rank all ranks' leaves, in rank order; a collective call.

    Args:
        tree: As for `all_reduce`.
        comm: As for `all_reduce`.
        tiled: Put them one behind the other along their first axis, rather than along a new one.
        timeout: As for `all_reduce`.

    Returns:
        A tree of new `jax.Array`, of shape ``(world_size, *shape)``, or tiled
        ``(world_size * shape[0], *shape[1:])``.

    Raises:
        InvalidArgument: As `all_reduce`, or a leaf to be tiled is a number.
        Mismatch: As `all_reduce`, and so for its other errors.
    """
    comm = _ranks(comm, timeout)
    return _call(operations.AllGather(comm, timeout, calling.truth("tiled", tiled)), tree)


def reduce_scatter(
    tree: Any,
    comm: Communicator | None = None,
    op: str = "sum",
    *,
    tiled: bool = False,
    timeout: float | None = None,
) -> Any:
    """Combine every leaf over all ranks and leave each rank its own part; a collective call.

    Args:
        tree: As for `all_reduce`. The first axis of a leaf is ``world_size`` long, or tiled a
            multiple of it.
        comm: As for `all_reduce`.
        op: As for `all_reduce`.
        tiled: Rank r gets the r-th block of rows, rather than row r without its first axis.
        timeout: As for `all_reduce`.

    Returns:
        A tree of new `jax.Array`, of shape ``shape[1:]``, or tiled
        ``(shape[0] // world_size, *shape[1:])``.

    Raises:
        InvalidArgument: As `all_reduce`, or a leaf's first axis does not fit.
        Mismatch: As `all_reduce`, and so for its other errors.
    """
    comm = _ranks(comm, timeout)
    code = calling.reduction(op, "auto", None)["reduce_op"]
    is_tiled = calling.truth("tiled", tiled)
    return _call(operations.ReduceScatter(comm, timeout, op, is_tiled), tree, code)


def all_to_all(tree: Any, comm: Communicator | None = None, *, timeout: float | None = None) -> Any:
    """Send the r-th block of rows of every leaf to rank r, and get one from each; collective.

    Args:
        tree: As for `all_reduce`. The first axis of a leaf is a multiple of ``world_size``.
        comm: As for `all_reduce`.
        timeout: As for `all_reduce`.

    Returns:
        As `all_reduce`; the blocks in rank order.

    Raises:
        InvalidArgument: As `all_reduce`, or a leaf's first axis does not fit.
        Mismatch: As `all_reduce`, and so for its other errors.
    """
    return _call(operations.AllToAll(_ranks(comm, timeout), timeout), tree)


def barrier(comm: Communicator | None = None, *, timeout: float | None = None) -> None:
    """Wait until every rank has come here; in a compiled program in the order of its collectives.

    Args:
        comm: As for `all_reduce`.
        timeout: As for `all_reduce`.

    Raises:
        Mismatch: As `all_reduce`, and so for its other errors.
    """
    staged.call(operations.Barrier(_ranks(comm, timeout), timeout), [])


def _ranks(comm: Communicator | None, timeout: float | None) -> Communicator:
    require_ranks(comm)
    milliseconds(timeout)
    return current() if comm is None else comm


def _call(operation: operations.Operation, tree: Any, reduce_code: int | None = None) -> Any:
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [_array(operation.name, path, leaf, reduce_code) for path, leaf in paths]
    # Before anything is sent or traced: it refuses shapes.
    for leaf in leaves:
        operation.result_shape(leaf.shape)
    results = staged.call(operation, leaves) if leaves else []
    return jax.tree_util.tree_unflatten(structure, results)


def _array(name: str, path: Any, leaf: Any, reduce_code: int | None) -> Any:
    where = f"{name}: leaf {jax.tree_util.keystr(path) or 'of the tree'}"
    if not isinstance(leaf, jax.Array):
        try:
            leaf = jax.numpy.asarray(leaf)
        except (TypeError, ValueError, OverflowError) as error:
            what = f"{where} is a {type(leaf).__name__} that makes no array"
            raise InvalidArgument(f"{what}: {error}") from error
    dtype = leaf.dtype
    if not isinstance(dtype, np.dtype):
        raise InvalidArgument(f"{where} has dtype {dtype}; give jax.random.key_data of it")
    if _is_packed(dtype):
        raise InvalidArgument(
            f"{where} has dtype {dtype}, several of which JAX packs into a byte; use int8"
        )
    code = code_of(dtype)
    if reduce_code is not None:
        if code is None:
            raise InvalidArgument(
                f"{where} has dtype {dtype}, which cannot be reduced; use {', '.join(DTYPE_CODES)}"
            )
        if not _core.is_defined(code, reduce_code):
            raise InvalidArgument(f"{where}: the operation is not defined for {dtype}")
    return leaf


def _is_packed(dtype: Any) -> bool:
    if jax.numpy.issubdtype(dtype, jax.numpy.integer):
        return bool(jax.numpy.iinfo(dtype).bits < 8)
    is_float = jax.numpy.issubdtype(dtype, jax.numpy.floating)
    return is_float and bool(jax.numpy.finfo(dtype).bits < 8)
