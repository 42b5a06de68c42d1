"""States and plain values as a text, and beside it the memory of the tensors and arrays in them.

The text is JSON, in which only the kinds of values listed here can be: to read it runs no code,
whoever wrote it. A tensor keeps its dtype and the order of its dimensions in memory, and comes out
on the CPU; one that is there several times is sent once and is one again.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch

from gradring.errors import InvalidArgument, ProtocolError

_DICTS: dict[str, type[dict[Any, Any]]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
}
_NUMPY_KINDS = "biufcmMSU"  # Whose elements are nothing but their bytes.


class Writer:
    """Writes values, and keeps what else is to be sent.

    Attributes:
        sources: The tensors whose memory is sent, in the order in which the text names them. They
            are those that were given, on any device, and may be strided.
    """

    def __init__(self) -> None:
        """Have nothing yet."""
        self.sources: list[torch.Tensor] = []
        self._leaves: list[Any] = []
        self._known: dict[Any, int] = {}
        self._held: list[torch.Tensor] = []  # Or others might be made in their places.

    def text(self, value: Any, place: str) -> str:
        """Return a value as text.

        Args:
            value: Of the kinds that can be sent.
            place: What errors call it.

        Raises:
            InvalidArgument: Something in it cannot be sent; says what and where.
        """
        try:
            node = self._node(value, place)
            return json.dumps([self._leaves, node])
        except RecursionError:
            raise InvalidArgument(f"{place} is nested too deeply, or contains itself") from None
        except ValueError as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"{place} cannot be sent: {error}") from None

    def _node(self, value: Any, place: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind in (list, tuple):
            items = [self._node(each, f"{place}[{index}]") for index, each in enumerate(value)]
            return [kind.__name__, items]
        if kind.__name__ in _DICTS and kind is _DICTS[kind.__name__]:
            return self._dict(value, place)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, place)
        if isinstance(value, np.generic) or kind is np.ndarray:
            return self._array(value, place)
        raise InvalidArgument(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which cannot be sent; what can "
            "are tensors, NumPy arrays, numbers, strings, True, False and None, in lists, tuples "
            "and dicts, and beside them objects with state_dict() and load_state_dict()"
        )

    def _dict(self, value: dict[Any, Any], place: str) -> Any:
        pairs = []
        for key, each in value.items():
            _require_key(key, place)
            pairs.append([self._node(key, place), self._node(each, f"{place}[{key!r}]")])
        # Versions of a model's modules, by which they read old states.
        notes = getattr(value, "_metadata", None)
        return [type(value).__name__, pairs, self._node(notes, f"{place}._metadata")]

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

    def _array(self, value: Any, place: str) -> Any:
        array = np.asarray(value, order="C")
        if array.dtype.kind not in _NUMPY_KINDS:
            raise InvalidArgument(f"{place} is an array of {array.dtype}, which cannot be sent")
        known = ["array", array.dtype.str, list(array.shape), isinstance(value, np.generic)]
        writable = array if array.flags.writeable else array.copy()  # Torch warns of others.
        return [*known, self._leaf(_bytes_of(writable))]

    def _leaf(self, tensor: torch.Tensor) -> int:
        self._held.append(tensor)
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
        self._leaves.append([name, list(source.shape), order])
        self.sources.append(source)
        self._known[key] = len(self.sources) - 1
        return self._known[key]


class Reader:
    """Reads what a `Writer` has written, in two steps: memory first, values when that is filled.

    Attributes:
        targets: Contiguous tensors on the CPU, for the memory of the writer's ``sources``.
    """

    def __init__(self, text: str) -> None:
        """Make room.

        Raises:
            ProtocolError: It is no such text.
        """
        try:
            self._leaves, self._root = json.loads(text)
            self.targets = [_room_for(*leaf) for leaf in self._leaves]
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"a state arrived that cannot be read: {error}") from None

    def value(self) -> Any:
        """Return the value, over the memory of ``targets``.

        Raises:
            ProtocolError: It is none of those that can be sent.
        """
        self._tensors = [
            target.permute([order.index(dim) for dim in range(target.dim())])
            for target, (_, _, order) in zip(self.targets, self._leaves, strict=True)
        ]
        return self._read(self._root)

    def _read(self, node: Any) -> Any:
        if not isinstance(node, list):
            return node
        kind, *given = node
        if kind in ("list", "tuple"):
            items = [self._read(each) for each in given[0]]
            return items if kind == "list" else tuple(items)
        if kind in _DICTS:
            return self._read_dict(_DICTS[kind](), *given)
        if kind == "tensor":
            return self._tensors[given[0]]
        if kind == "sparse":
            nodes, shape, is_coalesced = given
            indices, values = map(self._read, nodes)
            return torch.sparse_coo_tensor(
                indices, values, shape, device="cpu",
                check_invariants=True, is_coalesced=is_coalesced,
            )  # fmt: skip
        if kind == "array":
            name, shape, is_scalar, leaf = given
            flat, dtype = self._tensors[leaf].numpy(), np.dtype(name)
            array = flat.view(dtype).reshape(shape) if flat.size else np.empty(shape, dtype)
            return array[()] if is_scalar else array
        raise ProtocolError(f"a state arrived with a value of the unknown kind {kind!r}")

    def _read_dict(self, result: Any, pairs: Any, notes: Any) -> Any:
        for key, value in pairs:
            result[self._read(key)] = self._read(value)
        if notes is not None:
            result._metadata = self._read(notes)  # noqa: SLF001 - as torch.nn.Module has it
        return result


def _require_key(key: Any, place: str) -> None:
    if key is None or type(key) in (bool, int, float, str):
        return
    if type(key) is tuple:
        for each in key:
            _require_key(each, place)
        return
    raise InvalidArgument(f"{place} has the key {key!r}; keys are numbers, strings and tuples")


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


def _bytes_of(array: Any) -> torch.Tensor:
    flat = array.reshape(-1)
    return torch.from_numpy(flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8))


def _room_for(dtype: str, shape: list[int], order: list[int]) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype) or sorted(order) != list(range(len(shape))):
        raise ValueError(f"{dtype} of {shape}")
    return torch.empty(shape, dtype=kind, device="cpu")
