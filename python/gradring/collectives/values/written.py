"""Plain values as a text, and beside it the memory of the arrays and bytes in them.

The text is JSON, in which only the kinds of values listed here can be: to read it runs no code,
whoever wrote it. Numbers keep their bits, arrays their dtype and shape; an array that is there
several times is sent once, and shares its memory again. `gradring.torch.state` adds tensors.
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter, OrderedDict
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradring.arrays.device_arrays import is_torch
from gradring.errors import InvalidArgument, ProtocolError

Bytes = npt.NDArray[np.uint8]

_DICTS: dict[str, type[dict[Any, Any]]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": Counter,
}
# Arrays know no zeros at the end of these, where a scalar may have some.
_NUMPY_TEXTS: dict[str, type[np.str_ | np.bytes_]] = {"str_": np.str_, "bytes_": np.bytes_}
_NUMPY_KINDS = "biufcmMSU"  # Whose elements are nothing but their bytes.
_OF_A_LIBRARY = 2  # What NumPy calls such a type.
_JSON_BITS = 64  # Longer numbers Python reads from a text only up to a limit that it is told.


class Writer:
    """Writes values, and keeps what else is to be sent.

    Attributes:
        sources: What is sent beside the text, in the order in which the text names it: here the
            bytes of arrays, contiguous; those that were given where these are.
    """

    WHAT_CAN: ClassVar[str] = (
        "are NumPy arrays, numbers, strings, bytes, True, False and None, in lists, tuples and "
        "dicts"
    )

    def __init__(self) -> None:
        """Have nothing yet."""
        self.sources: list[Any] = []
        self._leaves: list[Any] = []
        self._known: dict[Any, int] = {}

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

    def _node(self, value: Any, place: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if value.bit_length() < _JSON_BITS else ["int", hex(value)]
        if kind is float:
            return ["nan", struct.pack("<d", value).hex()] if math.isnan(value) else value
        if kind in (list, tuple):
            items = [self._node(each, f"{place}[{index}]") for index, each in enumerate(value)]
            return [kind.__name__, items]
        if kind.__name__ in _DICTS and kind is _DICTS[kind.__name__]:
            return self._dict(value, place)
        if kind is bytes:
            return ["bytes", self._memory(np.frombuffer(value, np.uint8))]
        if kind in _NUMPY_TEXTS.values():
            return [kind.__name__, self._node(value[:], place)]
        if kind is np.ndarray or (isinstance(value, np.generic) and kind is value.dtype.type):
            return self._array(value, place)
        return self._other(value, place)

    def _other(self, value: Any, place: str) -> Any:
        kind = type(value)
        advice = "; tensors go with gradring.torch.broadcast_state" if is_torch(value) else ""
        raise InvalidArgument(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which cannot be sent; what can "
            f"{self.WHAT_CAN}{advice}"
        )

    def _dict(self, value: dict[Any, Any], place: str) -> list[Any]:
        pairs = []
        for key, each in value.items():
            _require_key(key, place)
            pairs.append([self._node(key, place), self._node(each, f"{place}[{key!r}]")])
        return [type(value).__name__, pairs]

    def _array(self, value: Any, place: str) -> Any:
        array = np.asarray(value, order="C")
        # Some types of other libraries have one of these kinds, and a name that says too little.
        if array.dtype.kind not in _NUMPY_KINDS or array.dtype.isbuiltin == _OF_A_LIBRARY:
            raise InvalidArgument(f"{place} is an array of {array.dtype}, which cannot be sent")
        known = ["array", array.dtype.str, list(array.shape), isinstance(value, np.generic)]
        flat = array.reshape(-1)
        return [*known, self._memory(flat.view(np.uint8) if flat.nbytes else _NOTHING)]

    def _memory(self, data: Bytes) -> int:
        """Note an array of bytes to be sent, and return its number."""
        key = (data.ctypes.data, data.size)
        if data.size > 0 and key in self._known:
            return self._known[key]
        return self._noted(key, data.size, data)

    def _noted(self, key: Any, leaf: Any, source: Any) -> int:
        self._leaves.append(leaf)
        self.sources.append(source)  # Held, or other memory might come to lie at its place.
        self._known[key] = len(self.sources) - 1
        return self._known[key]


class Reader:
    """Reads what a `Writer` has written, in two steps: memory first, values when that is filled.

    Attributes:
        targets: Memory for the writer's ``sources``: here arrays of bytes.
    """

    def __init__(self, text: str) -> None:
        """Make room.

        Raises:
            ProtocolError: It is no such text.
        """
        try:
            self._leaves, self._root = json.loads(text)
            self.targets = [self._room_for(leaf) for leaf in self._leaves]
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"a value arrived that cannot be read: {error}") from None

    def value(self) -> Any:
        """Return the value, over the memory of ``targets``.

        Raises:
            ProtocolError: It is none of those that can be sent.
        """
        try:
            return self._read(self._root)
        except (ValueError, TypeError, LookupError, RecursionError, struct.error) as error:
            raise ProtocolError(f"a value arrived that cannot be read: {error}") from None

    def _room_for(self, leaf: Any) -> Any:
        return np.empty(leaf, np.uint8)

    def _memory(self, number: int) -> Bytes:
        """Return the bytes that a number of `Writer._memory` stands for."""
        found: Bytes = self.targets[number]
        return found

    def _read(self, node: Any) -> Any:
        if not isinstance(node, list):
            return node
        kind, *given = node
        if kind in ("list", "tuple"):
            items = [self._read(each) for each in given[0]]
            return items if kind == "list" else tuple(items)
        if kind in _DICTS:
            return self._read_dict(_DICTS[kind](), *given)
        if kind == "int":
            return int(given[0], 16)
        if kind == "nan":
            return struct.unpack("<d", bytes.fromhex(given[0]))[0]
        if kind == "bytes":
            return self._memory(given[0]).tobytes()
        if kind in _NUMPY_TEXTS:
            return _NUMPY_TEXTS[kind](self._read(given[0]))
        if kind == "array":
            name, shape, is_scalar, number = given
            flat, dtype = self._memory(number), np.dtype(name)
            array = flat.view(dtype).reshape(shape) if flat.size else np.empty(shape, dtype)
            return array[()] if is_scalar else array
        return self._read_other(kind, given)

    def _read_other(self, kind: Any, _given: list[Any]) -> Any:
        raise ProtocolError(f"a value arrived of the unknown kind {kind!r}")

    def _read_dict(self, result: Any, pairs: Any) -> Any:
        for key, value in pairs:
            result[self._read(key)] = self._read(value)
        return result


def _require_key(key: Any, place: str) -> None:
    if key is None or type(key) in (bool, int, float, str):
        return
    if type(key) is tuple:
        for each in key:
            _require_key(each, place)
        return
    raise InvalidArgument(f"{place} has the key {key!r}; keys are numbers, strings and tuples")


_NOTHING = np.empty(0, np.uint8)
