"""Which tensors a training job shares, what to call them, and rank 0's values for all of them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import torch

from gradring.collectives.communicator import Communicator
from gradring.collectives.same_shapes import require_same_shapes
from gradring.errors import DeviceError, InvalidArgument
from gradring.torch.gradients.buckets import can_be_compressed, can_travel

Named = dict[str, torch.Tensor]

_SPARSE_LABEL = ", with sparse gradients"


def optimizer_parameters(
    groups: Iterable[Mapping[str, Any]], model: torch.nn.Module | None
) -> Named:
    """Return every parameter of an optimizer with the name that errors give it."""
    known = {} if model is None else {id(param): name for name, param in model.named_parameters()}
    named: Named = {}
    for number, group in enumerate(groups):
        own_names = group.get("param_names") or [None] * len(group["params"])
        for index, (own_name, param) in enumerate(zip(own_names, group["params"], strict=True)):
            place = f"parameter {index} of group {number}"
            name = known.get(id(param)) or own_name or place
            named[f"{name} ({place})" if name in named else name] = param
    return named


def lists_of(groups: Iterable[Mapping[str, Any]]) -> list[list[torch.Tensor]]:
    """Return each group's parameters, to know them again."""
    return [list(group["params"]) for group in groups]


def are_listed(groups: Sequence[Mapping[str, Any]], known: Sequence[list[torch.Tensor]]) -> bool:
    """Tell whether `lists_of` would still return the same tensors; cheap, for every step."""
    return len(groups) == len(known) and all(
        len(group["params"]) == len(params) and all(map(operator.is_, group["params"], params))
        for group, params in zip(groups, known, strict=True)
    )


def shared_tensors(named: Named, model: torch.nn.Module | None) -> Named:
    """Return an optimizer's parameters and what else a model has, each once, by names of its own.

    Args:
        named: What `optimizer_parameters` returned.
        model: Its other parameters and its buffers come after those.
    """
    shared = dict(named)
    if model is None:
        return shared
    known = {id(param) for param in named.values()}
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if id(tensor) not in known:
            # The optimizer may have one of that name too, from a module that is not in the model.
            shared[f"{name} (of model=)" if name in shared else name] = tensor
    return shared


def require_averageable(named: Named) -> None:
    """Refuse parameters whose gradients cannot be averaged.

    Raises:
        DeviceError: One is neither on the CPU nor on CUDA.
        InvalidArgument: One is sparse, or has a dtype without an average.
    """
    for name, param in named.items():
        if param.device.type not in ("cpu", "cuda"):
            raise DeviceError(
                f"{name} is on {param.device}; models on the CPU and on CUDA can be trained"
            )
        if param.requires_grad and param.layout != torch.strided:
            raise InvalidArgument(f"{name} is a {param.layout} tensor; only dense ones are trained")
        if param.requires_grad and not can_travel(param):
            raise InvalidArgument(f"{name} has dtype {param.dtype}, which cannot be averaged")


def require_compressible(named: Named) -> None:
    """Refuse parameters whose gradients do not travel as float32.

    Raises:
        InvalidArgument: One does not; names it.
    """
    for name, param in named.items():
        if param.requires_grad and not can_be_compressed(param):
            raise InvalidArgument(f"{name} has dtype {param.dtype}, which cannot be compressed")


def require_same(
    comm: Communicator,
    named: Named,
    averaged: Container[str] = (),
    *,
    sparse: Container[str] = (),
) -> None:
    """Compare the lists of tensors of all ranks; a collective call.

    Args:
        comm: The ranks.
        named: Tensors by name, in their order.
        averaged: Names of those whose gradients are averaged: if one is frozen, it is everywhere.
        sparse: Names of those with sparse gradients.

    Raises:
        InvalidArgument: A tensor cannot be sent; nothing was.
        Mismatch: Number, names, shapes or dtypes differ between ranks, or what is frozen or has
            sparse gradients; names the first difference.
    """
    require_same_shapes(
        comm,
        "tensors",
        list(named),
        [tuple(tensor.shape) for tensor in named.values()],
        [str(tensor.dtype).removeprefix("torch.") for tensor in named.values()],
        labels=[
            _label(name, tensor, name in averaged) + _SPARSE_LABEL * (name in sparse)
            for name, tensor in named.items()
        ],
    )


def _label(name: str, tensor: torch.Tensor, is_averaged: bool) -> str:
    label = name
    if tensor.layout != torch.strided:
        label += f", sparse in {tensor.sparse_dim()} dimensions"
    return f"{label}, frozen" if is_averaged and not tensor.requires_grad else label


def require_shape(name: str, tensor: torch.Tensor) -> None:
    """Refuse a parameter that has no shape yet.

    Raises:
        InvalidArgument: It is a lazy layer's, through which nothing has gone.
    """
    if torch.nn.parameter.is_lazy(tensor):
        raise InvalidArgument(
            f"{name} has no shape yet, as its layer is a lazy one; run a batch through the "
            "model before gradring.torch.distributed()"
        )


def require_shareable(named: Named) -> None:
    """Refuse tensors that cannot take rank 0's values.

    Raises:
        DeviceError: One is neither on the CPU nor on CUDA.
        InvalidArgument: One is lazy, of an unknown layout, or has elements that share memory.
    """
    for name, tensor in named.items():
        require_shape(name, tensor)
        if tensor.device.type not in ("cpu", "cuda"):
            raise DeviceError(
                f"{name} is on {tensor.device}; ranks share tensors on the CPU and on CUDA"
            )
        if tensor.layout not in (torch.strided, torch.sparse_coo):
            raise InvalidArgument(
                f"{name} is a {tensor.layout} tensor, which ranks cannot share; keep it in "
                "torch.sparse_coo format, or outside of the model's parameters and buffers"
            )
        if tensor.layout == torch.strided and _is_expanded(tensor):
            raise InvalidArgument(
                f"{name} has elements that share memory, as expand() makes them, and cannot take "
                "rank 0's values; give the model a copy of its own, expanded.clone()"
            )


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def share(
    comm: Communicator,
    named: Named,
    averaged: Container[str] = (),
    *,
    sparse: Container[str] = (),
    compare_more: Callable[[], None] | None = None,
) -> None:
    """Give every rank rank 0's values; a collective call.

    Args:
        comm: The ranks.
        named: Tensors by name; written in place. Dense, or sparse in COO format.
        averaged: As for `require_same`.
        sparse: As for `require_same`.
        compare_more: Called on all ranks when they have the same tensors, before any is written.

    Raises:
        DeviceError: One is neither on the CPU nor on CUDA; nothing was sent.
        InvalidArgument: A tensor cannot be sent; nothing was.
        Mismatch: As `require_same`; nothing was written.
    """
    require_shareable(named)
    require_same(comm, named, averaged, sparse=sparse)
    if compare_more is not None:
        compare_more()
    with torch.no_grad():
        for tensor in named.values():
            if tensor.is_sparse:
                tensor.copy_(_sparse_of_rank_0(comm, tensor))
            else:
                _take_values(comm, tensor.detach())


def share_buffers(comm: Communicator, model: torch.nn.Module | None) -> None:
    """Give every rank rank 0's buffers of a model; a collective call.

    Raises:
        InvalidArgument: There is no model.
        Mismatch: As `require_same`.
    """
    if model is None:
        raise InvalidArgument("share_buffers: give the model to distributed(..., model=model)")
    if comm.world_size > 1:
        share(comm, dict(model.named_buffers()))


def _take_values(comm: Communicator, tensor: torch.Tensor) -> None:
    # The memory itself where it holds the numbers: not those of conj() and the like; on CUDA only
    # where it is contiguous, which channels_last, say, is not.
    is_view = tensor.is_conj() or tensor.is_neg()
    if is_view or (tensor.is_cuda and not tensor.is_contiguous()):
        values = tensor.resolve_conj().resolve_neg().contiguous()
        comm.broadcast(torch.view_as_real(values) if values.is_complex() else values, 0)
        tensor.copy_(values)
    else:
        comm.broadcast(torch.view_as_real(tensor) if tensor.is_complex() else tensor, 0)


def _sparse_of_rank_0(comm: Communicator, tensor: torch.Tensor) -> torch.Tensor:
    mine = tensor.detach().coalesce()
    indices, values = mine.indices().contiguous(), mine.values().contiguous()
    count = torch.tensor([values.shape[0]])
    comm.broadcast(count, 0)
    if comm.rank != 0:
        indices = indices.new_empty(indices.shape[0], int(count))
        values = values.new_empty(int(count), *values.shape[1:])
    _take_values(comm, indices)
    _take_values(comm, values)
    return torch.sparse_coo_tensor(
        indices, values, tensor.shape, check_invariants=True, is_coalesced=True
    )
