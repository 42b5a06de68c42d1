"""What a server does for a checkpoint: writes what its shard had at the cut, or reads files back.

Runs on the server's own Python thread (`gradring.ps.serving`). A job and its result are JSON; a
failure is a result too, so that the saver hears of all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import queue
import threading
from typing import Any

from gradring import _core, errors
from gradring.errors import InvalidArgument
from gradring.ps.saved import files, snapshot_files
from gradring.ps.saved.manifest import File
from gradring.ps.saved.store_calls import Behind, Deadline, within

PIECE_BYTES = 1 << 20

_GIVE_MORE = "give it more, or use more servers"


@dataclasses.dataclass(frozen=True)
class _Task:
    core: Any  # _core.PsServer
    shard: int
    cut: int
    wanted: dict[str, Any]


def carry_out(core: Any, job: tuple[int, int, bool, bytes]) -> None:
    """Do one job of `_core.PsServer.next_job` and report what came of it."""
    shard, cut, _, text = job
    try:
        wanted = json.loads(text.rpartition(b"\n")[2])  # Before it may stand a line for people.
        result = _ACTIONS[wanted["action"]](_Task(core, shard, cut, wanted))
    except MemoryError:
        lack = f"shard {shard}: this server has not the memory for it: {_GIVE_MORE}"
        result = {"error": InvalidArgument.__name__, "text": lack}
    except Exception as error:  # noqa: BLE001 - the saver gets it, whatever it is
        result = {"error": type(error).__name__, "text": f"shard {shard}: {error}"}
    # Where the server ends, whoever waits hears it from the connection.
    with contextlib.suppress(errors.Closed):
        core.finish_job(shard, cut, json.dumps(result), "")


@functools.lru_cache(maxsize=64)
def _shared(_cut: int, seconds: float, given: float) -> Deadline:
    return Deadline(seconds, given)


def _deadline(task: _Task) -> Deadline:
    """Return until when a job may use its store: all jobs of a cut that are here have one."""
    return _shared(task.cut, task.wanted["seconds"], task.wanted["timeout"])


def _write(task: _Task) -> dict[str, Any]:
    name, url = task.wanted["name"], task.wanted["url"]
    try:  # Whatever fails: a snapshot that stays open lets nobody take another one.
        written = within(_deadline(task), url, _write_file, task)
    finally:
        task.core.end_snapshot(task.shard, task.cut)
    total_bytes, crc32c, first_piece = written
    specs: dict[int, dict[str, Any]] = {}  # All of them come with the first piece.
    for _ in snapshot_files.parts(memoryview(first_piece), specs):
        pass
    return {
        "name": name,
        "shard": task.shard,
        "bytes": total_bytes,
        "crc32c": crc32c,
        "tables": list(specs.values()),
    }


def _write_file(task: _Task) -> tuple[int, int, bytes]:
    name = task.wanted["name"]
    where = files.folder(task.wanted["url"])
    with where.create(name) as sink:
        if sink.descriptor is None:
            return _write_parts(task, sink)
        written: tuple[int, int, bytes] = task.core.write_snapshot(
            sink.descriptor,
            f"{where.url}/{name}",
            task.shard,
            (task.wanted["shards"], task.cut, task.wanted["base_cut"]),
        )
        return written


def _write_parts(task: _Task, sink: files.Sink) -> tuple[int, int, bytes]:
    sealer = _core.PsFileSealer()
    sink.write([_begin(sealer, task)])
    first_piece = b""
    # One thread reads the next piece out of the shard while the other writes the last one.
    pieces: queue.Queue[bytes | None] = queue.Queue(1)
    has_failed = threading.Event()
    writing = Behind(_write_pieces, sink, sealer, pieces, has_failed)
    try:
        while not has_failed.is_set():
            piece = task.core.read_piece(task.shard, task.cut, PIECE_BYTES)
            if piece is None:
                break
            first_piece = first_piece or piece
            pieces.put(piece)
    finally:
        pieces.put(None)
        writing.is_over(None)  # Nobody may write to a file that is being ended.
    writing.result()
    sink.write([sealer.end()])
    return sealer.bytes, sealer.crc32c, first_piece


def _begin(sealer: Any, task: _Task) -> bytes:
    begun = sealer.begin(task.shard, task.wanted["shards"], task.cut, task.wanted["base_cut"])
    return bytes(begun)


def _write_pieces(
    sink: files.Sink, sealer: Any, pieces: queue.Queue[bytes | None], has_failed: threading.Event
) -> None:
    try:
        while (piece := pieces.get()) is not None:
            _seal(sink, sealer, piece)
    except BaseException:
        has_failed.set()
        while pieces.get() is not None:  # Who reads may be waiting for room.
            pass
        raise


def _seal(sink: files.Sink, sealer: Any, piece: bytes) -> None:
    head, fill = sealer.around(piece)
    sink.write([head, piece, fill])


def stage(
    core: Any,
    shard: int,
    staging: int,
    wanted: list[dict[str, Any]],
    deadline: Deadline,
) -> None:
    """Read files beside what the shard has; nothing of that changes before ``commit_load``.

    Raises:
        InvalidArgument: Another load is under way. Its ``staging`` is another number. Or there is
            no memory for what is read beside what the shard has.
        Closed: Who wanted it was lost meanwhile.
        TimedOut: Not all was read by the deadline; names what hangs.
    """
    # Here, not beside: a call that was given up finds it abandoned, and begins nothing.
    core.begin_load(shard, staging)
    try:
        for one in wanted:
            within(deadline, one["url"], _read_file, core, shard, staging, one)
    except BaseException as error:
        core.abandon_load(shard, staging)
        if not isinstance(error, MemoryError):
            raise
        raise InvalidArgument(
            "this server has not the memory for the checkpoint beside what it holds, which stays: "
            f"{_GIVE_MORE}, or start new ones that begin with it (`gradring serve --load`)"
        ) from None


def _read_file(core: Any, shard: int, staging: int, one: dict[str, Any]) -> None:
    where = files.folder(one["url"])
    for piece in snapshot_files.pieces(where, File(**one["file"]), one["cut"], one["base_cut"]):
        core.load_piece(shard, staging, piece)


def _stage(task: _Task) -> dict[str, Any]:
    stage(task.core, task.shard, task.cut, task.wanted["files"], _deadline(task))
    return {}


def _prepare(task: _Task) -> dict[str, Any]:
    task.core.prepare_load(task.shard, task.wanted["staging"])
    return {}


def _commit(task: _Task) -> dict[str, Any]:
    task.core.commit_load(task.shard, task.wanted["staging"])
    task.core.settle(task.shard)  # The log has what came of it: now somebody may be told.
    return {}


def _abandon(task: _Task) -> dict[str, Any]:
    task.core.abandon_load(task.shard, task.wanted["staging"])
    return {}


_ACTIONS = {
    "write": _write,
    "stage": _stage,
    "prepare": _prepare,
    "commit": _commit,
    "abandon": _abandon,
}
