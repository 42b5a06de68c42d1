"""Codecs for gradients: fewer bytes on the wire, with error feedback.

What an encoding leaves out of a vector is its residual, and is added to the next vector, so that
nothing is lost, only late (Seide et al. 2014; Karimireddy et al. 2019, arXiv:1901.09847; for top-k
Stich et al. 2018, arXiv:1809.07599). For every element decoded + residual == value, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gradring import _core
from gradring.arrays import buffers
from gradring.dtypes import DTYPE_CODES, name_of
from gradring.errors import InvalidArgument

_KINDS = {"bf16": 0, "fp16": 1, "int8": 2}
_TOP_K = 3


@dataclass(frozen=True)
class TopK:
    """Send only the elements of largest magnitude, with their places: 8 bytes each.

    Attributes:
        ratio: Of the elements, in (0, 1]; at least one of each rank's part is sent.
    """

    ratio: float

    def __post_init__(self) -> None:
        """Check the ratio."""
        try:
            is_ratio = 0 < self.ratio <= 1
        except TypeError:
            is_ratio = False
        if not is_ratio:
            raise InvalidArgument(f"TopK: the ratio must be in (0, 1], got {self.ratio!r}")


# "bf16" and "fp16": 2 bytes an element. "int8": 1 byte, and a float32 scale for each 256.
Compression = Literal["bf16", "fp16", "int8"] | TopK


def code_of(compress: Compression) -> tuple[int, float]:
    """Return a codec as the core takes it.

    Raises:
        InvalidArgument: There is none of this name.
    """
    if isinstance(compress, TopK):
        return _TOP_K, compress.ratio
    if compress not in list(_KINDS):  # Of a dict it would raise where it is a list.
        known = ", ".join(repr(name) for name in _KINDS)
        raise InvalidArgument(f"compress {compress!r} is none of {known}, TopK(ratio)")
    return _KINDS[compress], 1.0


def require_float32(what: str, values: Any, residual: Any) -> None:
    """Refuse views that cannot be encoded: of another dtype, or a residual of another size.

    Args:
        what: The operation, for the message.
        values: View of what is encoded.
        residual: View of what is left out, or ``None``.

    Raises:
        InvalidArgument: Names the argument and what it is.
    """
    for name, view in (("x", values), ("residual", residual)):
        if view is not None and view.dtype != DTYPE_CODES["float32"]:
            raise InvalidArgument(f"{what}: {name} has dtype {name_of(view.dtype)}, not float32")
    if residual is not None and residual.count != values.count:
        raise InvalidArgument(
            f"{what}: residual has {residual.count} elements, x has {values.count}"
        )


def encode(x: Any, compress: Compression, residual: Any = None) -> bytes:
    """Encode a float32 array.

    Args:
        x: Contiguous; not written.
        compress: The codec.
        residual: As many float32, contiguous, of other memory: is added to ``x`` before, and
            replaced by what the encoding leaves out. ``None``: that is lost.

    Returns:
        The bytes that would travel: how many depends on the codec and the size alone.

    Raises:
        InvalidArgument: Something is not float32, of another size, or ``residual`` shares memory
            with ``x``.
    """
    values = buffers.view(x, "x", writes=False)
    rest = None if residual is None else buffers.view(residual, "residual", writes=True)
    if rest is not None and rest.unpack is not None:
        raise InvalidArgument("residual is not contiguous, so what is left out could not be kept")
    require_apart(values, rest)
    left = None if rest is None else rest.buffer
    return _core.encode(values.buffer, *code_of(compress), left)


def require_apart(values: buffers.Operand, rest: buffers.Operand | None) -> None:
    """Raise `InvalidArgument` where a residual shares memory with what is encoded."""
    if rest is not None and buffers.overlap(values, rest):
        raise InvalidArgument("residual overlaps x; give it memory of its own, zeros at first")


def decode(encoded: bytes, compress: Compression, shape: int | Sequence[int]) -> Any:
    """Return the float32 array that bytes from `encode` stand for.

    Args:
        encoded: The bytes.
        compress: The codec that they were made by.
        shape: That of the array which was encoded.

    Raises:
        InvalidArgument: The bytes are not of this codec and shape.
    """
    decoded = np.empty(shape, np.float32)
    _core.decode(encoded, *code_of(compress), decoded)
    return decoded


def wire_bytes(count: int, compress: Compression | None, rank: int, world_size: int) -> int:
    """Return the bytes that a rank sends to others in one all_reduce of float32.

    Args:
        count: Elements.
        compress: ``None``: as they are, by an algorithm that sends as few as possible.
        rank: Whose bytes.
        world_size: Number of ranks.
    """
    if world_size == 1:
        return 0
    if compress is None:
        own = (rank + 1) * count // world_size - rank * count // world_size
        return 4 * (count - own + (world_size - 1) * own)
    return _core.compressed_bytes(*code_of(compress), count, rank, world_size)
