"""Rows for serving: ids and weights without the optimizer's state, as .npz or .parquet."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gradring.errors import InvalidArgument, TimedOut
from gradring.ps.saved import files, manifest, snapshot_files
from gradring.ps.saved.state import pages
from gradring.ps.saved.store_calls import FOR_GOOD, Deadline, read_within, within

if TYPE_CHECKING:
    from gradring.ps.sparse import SparseTable

Ids = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.float32]
Block = tuple[Ids, Rows]

_ROWS_AT_ONCE = 1 << 16
_GRACE_SECONDS = 1.0


def export_table(
    table: SparseTable, url: str | os.PathLike[str], *, timeout: float | None = None
) -> str:
    """Write the rows of a live table; those pushed meanwhile may be as before or after.

    Args:
        table: A sparse table.
        url: A path or any fsspec URL that ends in ``.npz`` (arrays ``ids`` uint64 (n,) and ``rows``
            float32 (n, dim), in the order of ids) or ``.parquet`` (columns ``id`` and ``row``, a
            fixed-size list of floats, in no order).
        timeout: Seconds for all of it; by default as long as it takes.

    Returns:
        Where they are: ``url``, absolute.

    Raises:
        InvalidArgument: The ending is another, an extra is missing, which it names, or the name is
            longer than a disk takes: 255 bytes. Nothing is read or written.
        DeviceError: The file cannot be written.
        Mismatch: The table was replaced by one with other settings, as loading does.
        PeerLost: A server was started again, or loaded a checkpoint, while its rows were read: no
            file is left, export again.
        TimedOut: It was not done in time; names the store that hangs, or the server that does. No
            file comes, unless it was just being put in its place.
    """
    deadline = Deadline.of(timeout, FOR_GOOD, f"export of table {table.name!r}: ")
    return _write(url, table.dim, _live_blocks(table, deadline), deadline)


def export_checkpoint(
    url: str | os.PathLike[str],
    table: str,
    to: str | os.PathLike[str],
    *,
    timeout: float | None = None,
) -> str:
    """Write the rows of one table of a checkpoint; needs no servers.

    Args:
        url: Of the checkpoint.
        table: Its name; sparse.
        to: As for `export_table`.
        timeout: Seconds for all of it; by default as long as it takes.

    Raises:
        InvalidArgument: There is no such checkpoint or table; as `export_table` otherwise.
        ProtocolError: A file is damaged; names it.
        DeviceError: A file cannot be read or written.
        TimedOut: As for `export_table`.
    """
    deadline = Deadline.of(timeout, FOR_GOOD, f"export of table {table!r}: ")
    asked = files.absolute(url)
    chain = manifest.read_chain(asked, lambda place, read: within(deadline, place, read, place))
    spec = next((one for one in chain[-1].tables if one["name"] == table), None)
    if spec is None or spec["kind"] != "sparse":
        names = sorted(one["name"] for one in chain[-1].tables if one["kind"] == "sparse")
        raise InvalidArgument(f"{chain[-1].url} has no sparse table {table!r}; it has {names}")
    return _write(to, spec["dim"], _saved_blocks(chain, table, deadline), deadline)


def _live_blocks(table: SparseTable, deadline: Deadline) -> Iterator[Block]:
    def timeout_ms() -> int:  # A server that hangs is named by the request, not by the file.
        deadline.require_left("its rows on the servers")
        return max(1, round(1000 * min(table.calls.timeout, deadline.left())))

    for meta, wide in pages(table, _ROWS_AT_ONCE, timeout_ms):
        if len(meta):
            yield meta["id"].copy(), wide[:, : table.dim].copy()


def _saved_blocks(
    chain: list[manifest.Manifest], table: str, deadline: Deadline
) -> Iterator[Block]:
    # A shard at a time: what comes later in the chain replaces what came before.
    for index in range(chain[0].shards):
        found: list[snapshot_files.Part] = []
        for step in chain:
            for file in step.files:
                if file.shard == index:
                    parts = partial(_parts, step, file, table)
                    read_within(deadline, step.url, parts, found.append)
        if found:
            yield _last_ones(found)


def _parts(step: manifest.Manifest, file: manifest.File, table: str) -> Iterator[Any]:
    specs: dict[int, dict[str, Any]] = {}
    where = files.folder(step.url)
    for piece in snapshot_files.pieces(where, file, step.cut, step.base_cut):
        yield from (one for one in snapshot_files.parts(piece, specs) if one.table == table)


def _last_ones(found: list[snapshot_files.Part]) -> Block:
    ids = np.concatenate([part.ids for part in found])
    gone = np.concatenate([np.full(len(part.ids), part.is_gone) for part in found])
    dim = found[0].rows.shape[1]
    rows = np.concatenate(
        [
            np.zeros((len(part.ids), dim), np.float32) if part.is_gone else part.rows
            for part in found
        ]
    )
    _, from_behind = np.unique(ids[::-1], return_index=True)
    last = len(ids) - 1 - from_behind
    last = last[~gone[last]]
    return ids[last], rows[last]


def _write(
    url: str | os.PathLike[str], dim: int, blocks: Iterator[Block], deadline: Deadline
) -> str:
    whole = files.absolute(url)
    files.require_name(whole)  # Before rows are read, which may take long.
    write = next((each for ending, each in _WRITERS.items() if whole.endswith(ending)), None)
    if write is None:
        raise InvalidArgument(f"export writes .npz and .parquet, not {whole!r}")
    target = _Target(whole)
    try:  # Who reads gives up by itself, and tells what hangs.
        within(deadline.later(_GRACE_SECONDS), whole, target.be_written, write, dim, blocks)
    except BaseException:
        deadline.end_now()
        target.give_up()
        raise
    return whole


class _Target:
    """A file that is written on a thread beside; once it is given up no more of it comes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_given_up = threading.Event()
        self._is_over = threading.Event()

    def give_up(self) -> None:
        """Have no more of it come, and what there is of it cleared away, unless a store hangs.

        Whoever interrupts an export may end the process next, and that thread with it.
        """
        self._is_given_up.set()
        self._is_over.wait(_GRACE_SECONDS)

    def be_written(self, write: Callable[..., None], dim: int, blocks: Iterator[Block]) -> None:
        """Call what writes it, on the thread beside."""
        try:
            write(self, dim, self._wanted(blocks))
        finally:
            self._is_over.set()

    def _wanted(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            self.require_wanted()
            yield block

    @contextlib.contextmanager
    def open(self) -> Iterator[_SinkFile]:
        """Put it in its place in the end, if somebody still waits for it."""
        parent, name = files.split(self._url)
        with files.folder(parent).create(name) as sink, _SinkFile(sink, self) as file:
            yield file
            self.require_wanted()

    def require_wanted(self) -> None:
        """Raise where nobody waits for it any more."""
        if self._is_given_up.is_set():
            raise TimedOut(f"{self._url}: nobody waits for it any more")


class _SinkFile(io.RawIOBase):
    """What NumPy and pyarrow write to.

    Once it is closed it takes what comes, and drops it: a writer of pyarrow that is thrown away
    after a failure writes its footer, long after the sink's file has gone.
    """

    def __init__(self, sink: files.Sink, target: _Target) -> None:
        self._sink = sink
        self._target = target
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            if not self.closed:
                self._target.require_wanted()
                self._sink.write([bytes(view)])
            self._at += view.nbytes
            return view.nbytes

    def tell(self) -> int:
        return self._at


def _write_npz(target: _Target, dim: int, blocks: Iterator[Block]) -> None:
    found = list(blocks)
    ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _ in found)])
    rows = np.concatenate([np.empty((0, dim), np.float32), *(rows for _, rows in found)])
    del found
    order = np.argsort(ids)
    with target.open() as file:
        np.savez(file, ids=ids[order], rows=rows[order])


def _write_parquet(target: _Target, dim: int, blocks: Iterator[Block]) -> None:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidArgument(
            "export to .parquet needs pyarrow: pip install gradring[parquet], or export to .npz"
        ) from error
    schema = arrow.schema([("id", arrow.uint64()), ("row", arrow.list_(arrow.float32(), dim))])
    with target.open() as file:
        writer = parquet.ParquetWriter(file, schema)
        for ids, rows in blocks:
            flat = arrow.array(rows.reshape(-1))
            lists = arrow.FixedSizeListArray.from_arrays(flat, dim)
            writer.write_table(arrow.table([arrow.array(ids), lists], schema=schema))
        writer.close()  # Not by `with`, which would end the file in good order after a failure.


_WRITERS = {".npz": _write_npz, ".parquet": _write_parquet}
