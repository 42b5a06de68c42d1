"""States and plain values as a text, and beside it the memory of the tensors and arrays in them.

What `gradring.collectives.values.written` writes, and tensors: each keeps its dtype and the order
of its dimensions in memory, and comes out on the CPU; one that is there several times is sent once
and is one again.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from gradring.collectives.values import written
from gradring.errors import InvalidArgument


class Writer(written.Writer):
    """Writes values, and keeps what else is to be sent.

    Attributes:
        sources: The tensors whose memory is sent, in the order in which the text names them. They
            are those that were given, on any device, and may be strided.
    """

    WHAT_CAN: ClassVar[str] = (
        "are tensors, NumPy arrays, numbers, strings, bytes, True, False and None, in lists, "
        "tuples and dicts, and beside them objects with state_dict() and load_state_dict()"
    )

    def _other(self, value: Any, place: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, place)
        return super()._other(value, place)

    def _dict(self, value: dict[Any, Any], place: str) -> list[Any]:
        # Versions of a model's modules, by which they read old states.
        notes = getattr(value, "_metadata", None)
        return [*super()._dict(value, place), self._node(notes, f"{place}._metadata")]

    def _tensor(self, value: torch.Tensor, place: str) -> Any:
        _require_dense_or_coo(value, place)
        tensor = value.detach()
        if type(tensor) is not torch.Tensor:
            raise InvalidArgument(
                f"{place} is a {type(tensor).__name__}, which is not all of a tensor or more than "
                "one; send the plain tensors that it is made of"
            )
        if tensor.is_sparse:
            parts = [tensor._indices(), tensor._values()]  # noqa: SLF001 - those of any
            nodes = [self._tensor(part, place) for part in parts]
            return ["sparse", nodes, list(tensor.shape), tensor.is_coalesced()]
        return ["tensor", self._leaf(tensor)]

    def _memory(self, data: written.Bytes) -> int:
        # Torch warns of memory that it must not write.
        return self._leaf(torch.from_numpy(data if data.flags.writeable else data.copy()))

    def _leaf(self, tensor: torch.Tensor) -> int:
        key: Any = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
        key = (*key, tensor.is_conj(), tensor.is_neg())
        if tensor.numel() > 0 and key in self._known:
            return self._known[key]
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
        source = tensor.permute(order)
        if not source.is_contiguous():
            order, source = list(range(tensor.dim())), tensor
        name = str(tensor.dtype).removeprefix("torch.")
        return self._noted(key, [name, list(source.shape), order], source)


class Reader(written.Reader):
    """Reads what a `Writer` has written, in two steps: memory first, values when that is filled.

    Attributes:
        targets: Contiguous tensors on the CPU, for the memory of the writer's ``sources``.
    """

    def value(self) -> Any:
        """Return the value, over the memory of ``targets``.

        Raises:
            ProtocolError: It is none of those that can be sent.
        """
        self._tensors = [
            target.permute([order.index(dim) for dim in range(target.dim())])
            for target, (_, _, order) in zip(self.targets, self._leaves, strict=True)
        ]
        return super().value()

    def _room_for(self, leaf: Any) -> torch.Tensor:
        dtype, shape, order = leaf
        kind = getattr(torch, dtype)
        if not isinstance(kind, torch.dtype) or sorted(order) != list(range(len(shape))):
            raise ValueError(f"{dtype} of {shape}")
        return torch.empty(shape, dtype=kind, device="cpu")

    def _memory(self, number: int) -> written.Bytes:
        found: written.Bytes = self._tensors[number].numpy()
        return found

    def _read_other(self, kind: Any, given: list[Any]) -> Any:
        if kind == "tensor":
            return self._tensors[given[0]]
        if kind == "sparse":
            nodes, shape, is_coalesced = given
            indices, values = map(self._read, nodes)
            return torch.sparse_coo_tensor(
                indices, values, shape, device="cpu",
                check_invariants=True, is_coalesced=is_coalesced,
            )  # fmt: skip
        return super()._read_other(kind, given)

    def _read_dict(self, result: Any, pairs: Any, notes: Any = None) -> Any:
        super()._read_dict(result, pairs)
        if notes is not None:
            result._metadata = self._read(notes)  # noqa: SLF001 - as torch.nn.Module has it
        return result


def _require_dense_or_coo(tensor: torch.Tensor, place: str) -> None:
    if torch.nn.parameter.is_lazy(tensor):
        raise InvalidArgument(
            f"{place} has no shape yet, as its layer is a lazy one; run a batch through the model "
            "before"
        )
    if tensor.is_meta:
        raise InvalidArgument(f"{place} is on the device meta, where tensors have no values")
    if tensor.is_quantized or tensor.is_nested:
        kind = "quantized" if tensor.is_quantized else "nested"
        raise InvalidArgument(f"{place} is a {kind} tensor, which cannot be sent")
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        raise InvalidArgument(
            f"{place} is a {tensor.layout} tensor, which cannot be sent; sparse ones in "
            "torch.sparse_coo format can"
        )
