"""Checkpoints: one consistent cut of all servers, written while training goes on.

`save` and `load` are `gradring.ps.ParameterServer`'s; each server moves its own part
(`gradring.ps.saved.checkpoint_jobs`). docs/checkpoints.md has formats and guarantees.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gradring import errors
from gradring.errors import DeviceError, InvalidArgument, TimedOut
from gradring.ps.saved import files, manifest, snapshot_files
from gradring.ps.saved.asked_jobs import AskedJobs
from gradring.ps.saved.checkpoint_jobs import stage
from gradring.ps.saved.claims import Claimed, claim
from gradring.ps.saved.export import export_checkpoint, export_table
from gradring.ps.saved.manifest import File, Manifest
from gradring.ps.saved.notes import checked
from gradring.ps.saved.store_calls import FOR_GOOD, Deadline, read_within, within

if TYPE_CHECKING:
    from gradring.ps.client import ParameterServer

__all__ = [
    "export_checkpoint",
    "export_table",
    "load",
    "read_notes",
    "save",
    "verify",
]

_WRITE_SECONDS = 3600.0
_OWN = 0  # The staging of a server itself.


def save(
    server: ParameterServer,
    url: str | os.PathLike[str],
    base: str | os.PathLike[str] | None = None,
    *,
    notes: dict[str, Any] | None = None,
    timeout: float | None = None,
) -> Manifest:
    """Write a checkpoint: weights, optimizer state, versions and dedup windows of one moment.

    Pushes are held back while all servers agree on the moment (milliseconds); then training goes on
    while every server writes its part. The checkpoint is there when its manifest is, which is
    written last and at once.

    Args:
        server: The connection.
        url: Where: a path, ``file:///...`` or any URL that fsspec knows. All servers must reach it.
            It must not have a checkpoint yet.
        base: An earlier checkpoint of these servers: only what has changed since then is written,
            and loading needs both.
        notes: What the script wants back with it, such as an epoch, a scheduler's ``state_dict()``
            and a position in the data: a dict of plain JSON values (None, True, False, numbers of
            up to 64 bits, strings, lists, dicts with strings as keys), of at most 1 MiB as JSON.
            `load` returns them as ``.notes``; a base's are not in there.
        timeout: Seconds for all of it; by default an hour. Servers let go of a store that hangs
            then: the next save may go to another place. Those that do not answer take some seconds
            more.

    Returns:
        What was written.

    Raises:
        InvalidArgument: ``notes`` are something else, or ``url`` is empty; nothing was sent then.
            Or there is a checkpoint at it, or another save is
            writing there; or ``base`` cannot be built on, or what it builds on is not there any
            more, or has come to 1000 checkpoints: save in full then; or an extra is missing. Or an
            earlier checkpoint is still being written, or its store hangs; names it. Or a server has
            not the memory for it.
        TimedOut: A server or the store was not done in time, or a server does not answer any more
            (found out within the connection's timeout and some seconds), or waited in vain for a
            worker's push at the cut. There is no checkpoint then, and none will come, unless the
            message says that it may still appear: its manifest was being written.
        DeviceError: A file could not be written.
        PeerLost: A server was lost or started again; there is no checkpoint. Save again.
    """
    kept = checked(notes)
    deadline = _deadline(timeout)
    jobs = AskedJobs(server.calls.core, server.calls.timeout, deadline)
    asked = files.absolute(url)
    below = None if base is None else _base(server.calls.core, files.absolute(base), deadline)
    claimed: Claimed = within(deadline, asked, claim, asked, late=Claimed.give_up)
    try:
        deadline.require_left(asked)
        made = _write(server.calls.core, jobs, claimed.place, below)
        made = dataclasses.replace(made, notes=kept)
        within(deadline, asked, _publish, claimed, made)
    except BaseException as error:
        if not claimed.give_up() and isinstance(error, TimedOut):
            raise TimedOut(f"{error}. The checkpoint may still appear there") from error
        raise
    return made


def _deadline(timeout: float | None) -> Deadline:
    return Deadline.of(timeout, _WRITE_SECONDS)


def _publish(claimed: Claimed, made: Manifest) -> None:
    try:
        _require_visible(claimed.where, made.files)
        with claimed.where.create(manifest.NAME) as sink:
            claimed.begin_manifest()  # Once it is open: opening may have taken for ever.
            sink.write([made.text()])
    finally:
        claimed.let_go()


def _read_chain(url: str, deadline: Deadline) -> list[Manifest]:
    return manifest.read_chain(url, lambda place, read: within(deadline, place, read, place))


def _base(core: Any, base: str, deadline: Deadline) -> Manifest:
    chain = _read_chain(base, deadline)  # All of it: loading will need that.
    below = chain[-1]
    for step in chain:
        within(deadline, step.url, _require_whole, step)
    if len(chain) >= manifest.LONGEST_CHAIN:
        raise InvalidArgument(
            f"{below.url} and what it builds on are {len(chain)} checkpoints, as many as may build "
            "on each other: save in full"
        )
    if below.shards != core.shards:
        raise InvalidArgument(
            f"{below.url} is of {below.shards} shards, there are {core.shards}: save in full"
        )
    return below


def _require_whole(step: Manifest) -> None:
    if missing := _missing(files.folder(step.url), step.files):
        file, found = missing
        raise InvalidArgument(
            f"{step.url}/{file.name} has {file.bytes} bytes as it was written, but there is "
            f"{found} now: nothing can build on it; save in full"
        )


def _missing(where: files.Folder, written: Sequence[File]) -> tuple[File, str] | None:
    """Return the first file that is not there as it was written, and what is there instead."""
    for file in written:
        found = where.bytes_of(file.name)
        if found != file.bytes:
            return file, "no such file" if found is None else f"{found} bytes"
    return None


def _write(core: Any, jobs: AskedJobs, url: str, below: Manifest | None) -> Manifest:
    """Have the servers write everything but the manifest, and return that."""
    wanted = {
        "action": "write",
        "url": url,
        "shards": core.shards,
        "base_cut": below.cut if below else 0,
        **jobs.seconds(),
    }
    names = [f"shard-{shard:05d}-of-{core.shards:05d}.grps" for shard in range(core.shards)]
    # A save that comes too early is told of this one by its first line.
    texts = [f"{url}\n{json.dumps({**wanted, 'name': name})}" for name in names]
    cut, lineages, stamps = jobs.cut(texts, list(below.stamps) if below else [])
    results = jobs.results(cut)
    if below is not None and list(below.lineages) != list(lineages):
        raise InvalidArgument(
            f"the servers have loaded something, or began anew, since {below.url} was written; "
            "nothing can build on it: save in full"
        )
    return Manifest(
        url=files.folder(url).url,
        cut=cut,
        shards=core.shards,
        files=tuple(File(r["name"], r["shard"], r["bytes"], r["crc32c"]) for r in results),
        tables=tuple(results[0]["tables"]),
        lineages=tuple(lineages),
        stamps=tuple(stamps),
        base=manifest.as_seen_from(url, below.url) if below else None,
        base_cut=below.cut if below else 0,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _require_visible(where: files.Folder, written: Sequence[File]) -> None:
    if missing := _missing(where, written):
        file, found = missing
        raise DeviceError(
            f"shard {file.shard} wrote {file.bytes} bytes to {where.url}/{file.name}, but here "
            f"it has {found}: all servers and the saver must reach the same folder"
        )


def load(
    server: ParameterServer, url: str | os.PathLike[str], *, timeout: float | None = None
) -> Manifest:
    """Replace what the servers hold by a checkpoint, of however many servers.

    Every byte is checked before anything is replaced. Pushes that run meanwhile are lost: call it
    while no worker pushes, and have workers pull again. Rows, state and versions are those of the
    cut, bit for bit; with as many servers as then, dedup windows too. What rounding has kept of
    this connection's coded pushes is dropped; other connections keep theirs, less than one
    rounding a row.

    Args:
        server: The connection.
        url: As for `save`; its bases are found by themselves.
        timeout: Seconds until all servers have taken it over; by default an hour. Servers that do
            not answer take some seconds more.

    Returns:
        What was loaded; its ``notes`` are those that `save` was given, empty where it was given
        none.

    Raises:
        InvalidArgument: There is no checkpoint, or one of its files is missing; names it. Or
            another connection is loading one, or a server has not the memory for it beside what it
            holds. As for every error whose message does not say that some servers may hold the
            checkpoint, they are as before.
        ProtocolError: A file is damaged or cut short; names it.
        DeviceError: A file could not be read.
        TimedOut: A server or the store was not done in time; names whose store hangs. Or a server
            had no connection to this client for so long that it has let go of what it had read.
            Load again.
        PeerLost: A server was lost or started again; the others may have loaded or not. Load
            again.
    """
    core = server.calls.core
    deadline = _deadline(timeout)
    jobs = AskedJobs(core, server.calls.timeout, deadline)
    asked = files.absolute(url)
    chain = _read_chain(asked, deadline)
    deadline.require_left(asked)
    wanted = {"action": "stage", **jobs.seconds()}
    texts = [
        json.dumps({**wanted, "files": _files_for(shard, core.shards, chain)})
        for shard in range(core.shards)
    ]
    staging = jobs.begin_load(texts)
    try:
        jobs.results(staging)
        # A server whose connection was away may have let go of it; from here on it does not.
        jobs.do("prepare", staging)
        deadline.require_left(asked)
    except BaseException:
        jobs.give_up_load(staging)
        raise
    try:
        jobs.do("commit", staging)
    except BaseException as error:
        jobs.end_load(staging)
        if not isinstance(error, errors.Error):
            raise
        raise type(error)(
            f"{error}; some servers may hold the checkpoint, and others what they had: load again"
        ) from error
    core.forget_residuals()  # They are of gradients that the tables of now have never seen.
    return chain[-1]


def load_server(core: Any, url: str, shards: int, timeout: float | None = None) -> Manifest:
    """Have one server begin with a checkpoint, before any client comes: its own shards only.

    Returns when it is where the server's log keeps things, too, with what was loaded.

    Args:
        core: The compiled server; in it there is nothing yet.
        url: As for `load`.
        shards: Of all servers.
        timeout: Seconds for reading it; by default an hour.

    Raises:
        InvalidArgument: As `load`, and so for every other error.
    """
    asked = files.absolute(url)
    deadline = Deadline.of(timeout, _WRITE_SECONDS, f"load {asked}: ")
    chain = _read_chain(asked, deadline)
    mine = range(core.first_shard, core.first_shard + core.shards)
    for shard in mine:
        stage(core, shard, _OWN, _files_for(shard, shards, chain), deadline)
    for shard in mine:
        core.commit_load(shard, _OWN)
    for shard in mine:
        core.settle(shard)
    core.tell_beginning(chain[-1].cut, chain[-1].url)
    return chain[-1]


def _files_for(shard: int, shards: int, chain: Sequence[Manifest]) -> list[dict[str, Any]]:
    """List the files with rows of this shard, each followed by what changed in it since."""
    then = chain[0].shards
    return [
        {"url": step.url, "cut": step.cut, "base_cut": step.base_cut, "file": vars(file)}
        for index in range(then)
        if index * shards < (shard + 1) * then and shard * then < (index + 1) * shards
        for step in chain
        for file in step.files
        if file.shard == index
    ]


def read_notes(url: str | os.PathLike[str], *, timeout: float | None = None) -> dict[str, Any]:
    """Return the notes of a checkpoint; loads nothing, needs no servers, reads its manifest only.

    For workers of servers that have begun with it (``gradring serve --load``), and those that
    another worker has loaded it for.

    Args:
        url: As for `load`.
        timeout: Seconds; by default as long as it takes.

    Returns:
        What `save` was given as ``notes``; empty where it was given none.

    Raises:
        InvalidArgument: There is no checkpoint.
        ProtocolError: Its manifest is damaged.
        DeviceError: It cannot be read.
        TimedOut: It was not read in time.
    """
    asked = files.absolute(url)
    deadline = Deadline.of(timeout, FOR_GOOD, f"read_notes {asked}: ")
    found: Manifest = within(deadline, asked, manifest.read_followed, asked)
    return found.notes


def verify(url: str | os.PathLike[str], *, timeout: float | None = None) -> Manifest:
    """Check every byte of a checkpoint and of all it builds on; loads nothing, needs no servers.

    Args:
        url: The checkpoint's folder, as for `ParameterServer.load`.
        timeout: Seconds for all of it; by default as long as it takes.

    Returns:
        The manifest of this one.

    Raises:
        InvalidArgument: There is no checkpoint, or a file is missing; names it.
        ProtocolError: A file is damaged or cut short; names it.
        DeviceError: A file cannot be read.
        TimedOut: Not all was read in time; names whose store hangs.
    """
    asked = files.absolute(url)
    deadline = Deadline.of(timeout, FOR_GOOD, f"verify {asked}: ")
    chain = _read_chain(asked, deadline)
    for step in chain:
        for file in step.files:
            read_within(deadline, step.url, partial(_pieces, step, file), lambda _: None)
    return chain[-1]


def _pieces(step: Manifest, file: File) -> Iterator[memoryview]:
    where = files.folder(step.url)
    return snapshot_files.pieces(where, file, step.cut, step.base_cut)
