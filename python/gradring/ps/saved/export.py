"""Rows for serving: ids and weights without the optimizer's state, as .npz or .parquet."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradring.errors import InvalidArgument
from gradring.ps.saved import files, manifest, snapshot_files
from gradring.ps.saved.state import pages

if TYPE_CHECKING:
    from gradring.ps.sparse import SparseTable

Ids = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]
Block = tuple[Ids, Rows]

_ROWS_AT_ONCE = 1 << 16


def export_table(table: SparseTable, url: str | os.PathLike[str]) -> str:
    """Write the rows of a live table; those pushed meanwhile may be as before or after.

    Args:
        table: A sparse table.
        url: A path or any fsspec URL that ends in ``.npz`` (arrays ``ids`` uint64 (n,) and ``rows``
            float32 (n, dim), in the order of ids) or ``.parquet`` (columns ``id`` and ``row``, a
            fixed-size list of floats, in no order).

    Returns:
        Where they are: ``url``, absolute.

    Raises:
        InvalidArgument: The ending is another, an extra is missing, which it names, or the name is
            longer than a disk takes: 255 bytes. Nothing is read or written.
        DeviceError: The file cannot be written.
        Mismatch: The table was replaced by one with other settings, as loading does.
        PeerLost: A server was started again, or loaded a checkpoint, while its rows were read: no
            file is left, export again.
    """
    return _write(url, table.dim, _live_blocks(table))


def export_checkpoint(url: str | os.PathLike[str], table: str, to: str | os.PathLike[str]) -> str:
    """Write the rows of one table of a checkpoint; needs no servers.

    Args:
        url: Of the checkpoint.
        table: Its name; sparse.
        to: As for `export_table`.

    Raises:
        InvalidArgument: There is no such checkpoint or table; as `export_table` otherwise.
        ProtocolError: A file is damaged; names it.
        DeviceError: A file cannot be read or written.
    """
    chain = manifest.read_chain(files.absolute(url))
    spec = next((one for one in chain[-1].tables if one["name"] == table), None)
    if spec is None or spec["kind"] != "sparse":
        names = sorted(one["name"] for one in chain[-1].tables if one["kind"] == "sparse")
        raise InvalidArgument(f"{chain[-1].url} has no sparse table {table!r}; it has {names}")
    return _write(to, spec["dim"], _saved_blocks(chain, table, spec["dim"]))


def _live_blocks(table: SparseTable) -> Iterator[Block]:
    for meta, wide in pages(table, _ROWS_AT_ONCE):
        if len(meta):
            yield meta["id"].copy(), wide[:, : table.dim].copy()


def _saved_blocks(chain: list[manifest.Manifest], table: str, dim: int) -> Iterator[Block]:
    # A shard at a time: what comes later in the chain replaces what came before.
    for index in range(chain[0].shards):
        ids, rows, gone = [], [], []
        for step in chain:
            specs: dict[int, dict[str, Any]] = {}
            for file in step.files:
                if file.shard != index:
                    continue
                found = snapshot_files.pieces(files.folder(step.url), file, step.cut, step.base_cut)
                for piece in found:
                    for part in snapshot_files.parts(piece, specs):
                        if part.table != table:
                            continue
                        ids.append(part.ids)
                        gone.append(np.full(len(part.ids), part.is_gone))
                        rows.append(
                            np.zeros((len(part.ids), dim), np.float32)
                            if part.is_gone
                            else part.rows
                        )
        if ids:
            yield _last_ones(np.concatenate(ids), np.concatenate(rows), np.concatenate(gone))


def _last_ones(ids: Ids, rows: Rows, gone: npt.NDArray[np.bool_]) -> Block:
    _, from_behind = np.unique(ids[::-1], return_index=True)
    last = len(ids) - 1 - from_behind
    last = last[~gone[last]]
    return ids[last], rows[last]


def _write(url: str | os.PathLike[str], dim: int, blocks: Iterator[Block]) -> str:
    whole = files.absolute(url)
    files.require_name(whole)  # Before rows are read, which may take long.
    parent, name = files.split(whole)
    if name.endswith(".npz"):
        _write_npz(files.folder(parent), name, dim, blocks)
    elif name.endswith(".parquet"):
        _write_parquet(files.folder(parent), name, dim, blocks)
    else:
        raise InvalidArgument(f"export writes .npz and .parquet, not {whole!r}")
    return whole


class _SinkFile(io.RawIOBase):
    """What NumPy and pyarrow write to.

    Once it is closed it takes what comes, and drops it: a writer of pyarrow that is thrown away
    after a failure writes its footer, long after the sink's file has gone.
    """

    def __init__(self, sink: files.Sink) -> None:
        self._sink = sink
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            if not self.closed:
                self._sink.write([bytes(view)])
            self._at += view.nbytes
            return view.nbytes

    def tell(self) -> int:
        return self._at


def _write_npz(where: files.Folder, name: str, dim: int, blocks: Iterator[Block]) -> None:
    found = list(blocks)
    ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _ in found)])
    rows = np.concatenate([np.empty((0, dim), np.float32), *(rows for _, rows in found)])
    del found
    order = np.argsort(ids)
    with where.create(name) as sink, _SinkFile(sink) as file:
        np.savez(file, ids=ids[order], rows=rows[order])


def _write_parquet(where: files.Folder, name: str, dim: int, blocks: Iterator[Block]) -> None:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidArgument(
            "export to .parquet needs pyarrow: pip install gradring[parquet], or export to .npz"
        ) from error
    schema = arrow.schema([("id", arrow.uint64()), ("row", arrow.list_(arrow.float32(), dim))])
    with where.create(name) as sink, _SinkFile(sink) as file:
        writer = parquet.ParquetWriter(file, schema)
        for ids, rows in blocks:
            flat = arrow.array(rows.reshape(-1))
            lists = arrow.FixedSizeListArray.from_arrays(flat, dim)
            writer.write_table(arrow.table([arrow.array(ids), lists], schema=schema))
        writer.close()  # Not by `with`, which would end the file in good order after a failure.
