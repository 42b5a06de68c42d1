"""A collective as a primitive of JAX: called at once, traced, differentiated, batched, compiled.

In a compiled program it is three callbacks. The middle one, a `buffer_callback`, moves the data:
it sees XLA's own memory, without a copy and without waiting for JAX's threads, which may all be
taken by callbacks that wait (of an `io_callback` that hangs where there is one thread). Nothing
keeps it in the program's order, so it takes a number from an ordered `io_callback` before it and
gives one to another behind it: those are never dropped, repeated or reordered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gradring.errors import InvalidArgument
from gradring.jax.failures import remember, wait_for_programs
from gradring.jax.operations import Array, Operation

_ALIGNMENT = 64  # Bytes.
_TICKET = jax.ShapeDtypeStruct((), np.int32)

_collective = Primitive("gradring_collective")
_collective.multiple_results = True


def call(operation: Operation, leaves: Sequence[Any]) -> list[Any]:
    """Do an operation on arrays of JAX, or put it into the program that is being traced."""
    return list(_collective.bind(*leaves, operation=operation))


def _at_once(*leaves: Any, operation: Operation) -> list[Any]:
    # A compiled program may still wait for its turn, and its collectives come first.
    wait_for_programs()
    ins = [_on_host(leaf, operation) for leaf in leaves]
    outs = [_aligned(operation.result_shape(x.shape), x.dtype) for x in ins]
    if operation.is_in_place:
        for x, out in zip(ins, outs, strict=True):
            np.copyto(out, x)
    operation.run(ins, outs)
    return [_like(leaf, out) for leaf, out in zip(leaves, outs, strict=True)]


def _on_host(leaf: Any, operation: Operation) -> Array:
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            raise InvalidArgument(f"{operation.name}: an array was donated or deleted before")
        if not leaf.is_fully_addressable:
            raise InvalidArgument(
                f"{operation.name}: an array lies on devices of other processes of "
                "jax.distributed; give what this process has of it (addressable_data)"
            )
    # Not ascontiguousarray: that makes a number an array of one.
    return np.asarray(leaf, order="C")


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    # As XLA wants it on the CPU, which then takes the memory over instead of copying it.
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def _like(leaf: Any, out: Array) -> Any:
    is_placed = isinstance(leaf, jax.Array) and getattr(leaf, "committed", True)
    if is_placed and (out.shape == leaf.shape or len(leaf.sharding.device_set) == 1):
        return jax.device_put(out, leaf.sharding)
    return jax.device_put(out)


def _results(*avals: Any, operation: Operation) -> tuple[list[Any], Any]:
    results = [
        aval.update(shape=operation.result_shape(aval.shape), weak_type=False) for aval in avals
    ]
    return results, _effects()


@functools.cache
def _effects() -> Any:
    # Those of the callbacks below, by which JAX keeps the order also around the primitive.
    return frozenset(jax.make_jaxpr(_take_ticket)().effects)


def _take_ticket() -> Any:
    return io_callback(lambda: np.int32(0), _TICKET, ordered=True)


def _give_ticket(_: Any) -> None:
    pass


def _in_program(*leaves: Any, operation: Operation) -> list[Any]:
    results = [
        jax.ShapeDtypeStruct(operation.result_shape(leaf.shape), leaf.dtype) for leaf in leaves
    ]

    def run(_: Any, outs: Any, *given: Any) -> None:
        _run([np.asarray(x) for x in given[:-1]], [np.asarray(x) for x in outs[:-1]], operation)

    aliases = {index: index for index in range(len(leaves))} if operation.is_in_place else {}
    staged = buffer_callback(
        run, (*results, _TICKET), has_side_effect=True, input_output_aliases=aliases
    )
    *outs, ticket = staged(*leaves, _take_ticket())
    io_callback(_give_ticket, (), ticket, ordered=True)
    return list(outs)


def _run(ins: Any, outs: Any, operation: Operation) -> None:
    try:
        operation.run(ins, outs)
    except BaseException as error:
        remember(error)
        raise


def _tangents(
    primals: Sequence[Any], tangents: Sequence[Any], *, operation: Operation
) -> tuple[list[Any], list[Any]]:
    moving = [i for i, x in enumerate(primals) if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)]
    if all(isinstance(tangents[i], ad.Zero) for i in moving):
        moving = []
    linear = operation.linear() if moving else operation  # It may refuse, before anything is sent.
    outs = call(operation, primals)
    results = [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]
    if moving:
        # All that may move, so that the ranks' programs do not differ by what does on each.
        dense = [ad.instantiate_zeros(tangents[i]) for i in moving]
        for i, tangent in zip(moving, call(linear, dense), strict=True):
            results[i] = tangent
    return outs, results


def _cotangents(given: Sequence[Any], *_: Any, operation: Operation) -> list[Any]:
    return call(operation.transposed(), [ad.instantiate_zeros(each) for each in given])


def _batched(
    leaves: Sequence[Any], axes: Sequence[int | None], *, operation: Operation
) -> tuple[list[Any], list[int | None]]:
    if not operation.is_batchable:
        raise InvalidArgument(f"{operation.name} does not work under jax.vmap: call it outside")
    given: list[Any] = []
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is None or operation.is_in_place:
            given.append(leaf)
            continue
        # Behind the axis that ranks are cut along; each example has to have one itself.
        operation.result_shape(leaf.shape[:axis] + leaf.shape[axis + 1 :])
        given.append(jax.numpy.moveaxis(leaf, axis, -1))
    outs = call(operation, given)
    if operation.is_in_place:
        return outs, list(axes)
    return outs, [
        None if axis is None else out.ndim - 1 for axis, out in zip(axes, outs, strict=True)
    ]


def _devices_of(axes: Any) -> Any:
    # Of shard_map and pmap the mesh has them. What a later JAX does not say here is refused.
    mesh = getattr(axes, "mesh", None)
    return getattr(axes, "num_devices", None) if mesh is None else mesh.size


def _lowered(context: Any, *leaves: Any, operation: Operation) -> Any:
    platforms = context.module_context.platforms
    if tuple(platforms) != ("cpu",):
        raise InvalidArgument(
            f"{operation.name}: programs for {', '.join(platforms)} cannot have gradring's "
            "collectives in them; call it outside of jax.jit, where arrays go through the host's "
            "memory"
        )
    devices = _devices_of(context.module_context.axis_context)
    if devices != 1:
        raise InvalidArgument(
            f"{operation.name}: this program runs on {devices} devices of this process, each of "
            "which would call it; call it outside of jax.jit, jax.shard_map and jax.pmap"
        )
    return mlir.lower_fun(
        functools.partial(_in_program, operation=operation), multiple_results=True
    )(context, *leaves)


_collective.def_impl(_at_once)
_collective.def_effectful_abstract_eval(_results)
ad.primitive_jvps[_collective] = _tangents
ad.primitive_transposes[_collective] = _cotangents
batching.primitive_batchers[_collective] = _batched
mlir.register_lowering(_collective, _lowered)
