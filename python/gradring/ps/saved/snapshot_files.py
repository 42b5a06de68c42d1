"""Files of shards: checked while they are read, and what is in them for those who want rows.

docs/checkpoints.md has the format.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gradring import _core
from gradring.errors import InvalidArgument, ProtocolError
from gradring.ps.saved import files
from gradring.ps.saved.manifest import File

_READ_BYTES = 4 << 20

# What a shard's records are, and a table's inside them.
_TABLE, _PIECE = 4, 5
_ROWS, _GONE, _DENSE = 2, 3, 5
_RECORD = struct.Struct("<QQQ")
_COUNTERS = 48  # Bytes before the spec.
_HEAD = struct.Struct("<BBHIIIQ")
_DENSE_HEAD = struct.Struct("<QQQQ")
_META_BYTES = 40


def pieces(where: files.Folder, file: File, cut: int, base_cut: int) -> Iterator[memoryview]:
    """Read one shard's file, checking every byte before it is handed out.

    Yields:
        The pieces that its shard made, in order; each until the next one is asked for.

    Raises:
        InvalidArgument: It is not there.
        ProtocolError: It is damaged or cut short, or belongs to another checkpoint.
        DeviceError: It cannot be read.
    """
    path = f"{where.url}/{file.name}"
    found = where.bytes_of(file.name)
    if found is None:
        raise InvalidArgument(f"{path} is missing, but the checkpoint's manifest names it")
    if found != file.bytes:
        raise ProtocolError(f"{path} has {found} bytes; it should have {file.bytes}")
    checker = _core.PsFileChecker()
    try:
        with where.open(file.name) as source:
            yield from _checked(source, checker)
        checker.end()
    except ProtocolError as error:
        raise ProtocolError(f"{path} is damaged: {error}") from error
    header = checker.header
    if checker.crc32c != file.crc32c or header is None or header[2:] != (cut, base_cut):
        raise ProtocolError(f"{path} is whole, but of another checkpoint than its manifest")


def _checked(source: files.Source, checker: Any) -> Iterator[memoryview]:
    rest = b""
    needed = 0
    while True:
        more = source.read(max(_READ_BYTES, needed - len(rest)))
        data = rest + more if rest else more
        whole, needed, found = checker.take(data)
        view = memoryview(data)
        for begin, end in found:
            yield view[begin:end]
        rest = bytes(view[whole:])
        if not more:
            if rest:
                raise ProtocolError(f"it ends inside a block, after {len(rest)} bytes of it")
            return


@dataclasses.dataclass
class Part:
    """A part of a table, as records have it."""

    table: str
    ids: npt.NDArray[np.uint64]  # Sparse; empty for a dense table.
    rows: npt.NDArray[np.float32]  # Without the state: (n, dim), or (n,) if dense.
    is_gone: bool = False  # These ids are no rows any more.
    begin: int = 0  # Dense: the first float's index.


def parts(piece: memoryview, specs: dict[int, dict[str, Any]]) -> Iterator[Part]:
    """Read the rows of a piece; adds the tables that it defines to ``specs``, by id."""
    while piece:
        kind, table, size = _RECORD.unpack_from(piece)
        body, piece = piece[_RECORD.size : _RECORD.size + size], piece[_RECORD.size + size :]
        if kind == _TABLE:
            specs[table] = _core.ps_read_spec(body[_COUNTERS:])
        elif kind == _PIECE:
            yield from _table_parts(body, specs[table])


def _table_parts(body: memoryview, spec: dict[str, Any]) -> Iterator[Part]:
    none = np.empty(0, np.uint64)
    while body:
        _, kind, _, count, floats, _, size = _HEAD.unpack_from(body)
        record, body = body[_HEAD.size : _HEAD.size + size], body[_HEAD.size + size :]
        if kind == _ROWS:
            meta = np.frombuffer(record[: count * _META_BYTES], np.uint64).reshape(count, -1)
            values = np.frombuffer(record[count * _META_BYTES :], np.float32)
            rows = values.reshape(count, floats)[:, : spec["dim"]]
            yield Part(spec["name"], meta[:, 0].copy(), rows.copy())
        elif kind == _GONE:
            ids = np.frombuffer(record, np.uint64).copy()
            yield Part(spec["name"], ids, np.empty((0, spec["dim"]), np.float32), is_gone=True)
        elif kind == _DENSE:
            begin = _DENSE_HEAD.unpack_from(record)[1]
            weights = np.frombuffer(record[_DENSE_HEAD.size :], np.float32)[:count]
            yield Part(spec["name"], none, weights.copy(), begin=begin)
