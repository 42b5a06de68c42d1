"""What a checkpoint consists of: its manifest, written last, and the chain to what it builds on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from gradring import _core
from gradring.errors import InvalidArgument, ProtocolError
from gradring.ps.saved import files

NAME = "manifest.json"
FORMAT = 2  # 1 had no answers beside the clients.
LONGEST_CHAIN = 1000  # Checkpoints that build on each other, the full one among them.


@dataclasses.dataclass(frozen=True)
class File:
    """One file: everything of one shard."""

    name: str
    shard: int
    bytes: int
    crc32c: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A checkpoint: docs/checkpoints.md says what each of these means."""

    url: str  # Where it was found; not in the file.
    cut: int
    shards: int
    files: tuple[File, ...]
    tables: tuple[dict[str, Any], ...]
    lineages: tuple[int, ...]
    stamps: tuple[dict[int, int], ...]
    base: str | None
    base_cut: int
    created: str  # When, UTC; for people.
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)  # The script's own.

    @property
    def total_bytes(self) -> int:
        """Of all its files, without those it builds on."""
        return sum(file.bytes for file in self.files)

    def text(self) -> bytes:
        """Return what is in the file."""
        body: dict[str, Any] = {
            "format": FORMAT,
            "gradring": _core.version,
            "created": self.created,
            "cut": self.cut,
            "base": self.base,
            "base_cut": self.base_cut,
            "shards": self.shards,
            "lineages": list(self.lineages),
            "stamps": [{str(table): stamp for table, stamp in of.items()} for of in self.stamps],
            "files": [dataclasses.asdict(file) for file in self.files],
            "tables": list(self.tables),
            "notes": self.notes,
        }
        body["crc32c"] = _crc(body)
        return (json.dumps(body, indent=1) + "\n").encode()


def _crc(body: dict[str, Any]) -> int:
    compact = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return _core.crc32c(compact.encode())


def read(url: str) -> Manifest:
    """Return the manifest of the checkpoint at a URL.

    Raises:
        InvalidArgument: There is no checkpoint: none was begun, or it was never finished.
        ProtocolError: The manifest is damaged, or of another version.
        DeviceError: It cannot be read.
    """
    where = files.folder(url)
    if where.bytes_of(NAME) is None:
        raise InvalidArgument(
            f"there is no checkpoint at {where.url}: it has no {NAME}, which is written last"
        )
    try:
        body = json.loads(files.read_all(where, NAME))
        if body["format"] != FORMAT:
            raise ProtocolError(
                f"{where.url}/{NAME} has format {body['format']}; this gradring reads {FORMAT}"
            )
        if body.pop("crc32c") != _crc(body):
            raise ProtocolError(f"{where.url}/{NAME} is damaged: its checksum is wrong")
        found = Manifest(
            url=where.url,
            cut=body["cut"],
            shards=body["shards"],
            files=tuple(File(**file) for file in body["files"]),
            tables=tuple(body["tables"]),
            lineages=tuple(body["lineages"]),
            stamps=tuple({int(k): v for k, v in of.items()} for of in body["stamps"]),
            base=body["base"],
            base_cut=body["base_cut"],
            created=body["created"],
            notes=body.get("notes", {}),  # Older ones have none.
        )
        _require_whole(found)
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"{where.url}/{NAME} is damaged: {error!r}") from error


def _require_whole(found: Manifest) -> None:
    """Refuse what no save writes, whatever its checksum says: with one file for each shard."""
    numbers = [found.cut, found.shards, found.base_cut]
    numbers += [number for file in found.files for number in (file.shard, file.bytes, file.crc32c)]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a number is none")
    if not isinstance(found.notes, dict):
        raise ValueError("its notes are no dict")
    if not isinstance(found.base, (str, type(None))):
        raise ValueError("what it builds on is no path")
    parts = (found.files, found.lineages, found.stamps)
    if not 1 <= found.shards == len(parts[0]) == len(parts[1]) == len(parts[2]):
        raise ValueError(f"it is of {found.shards} shards, but has {len(found.files)} files")
    if sorted(file.shard for file in found.files) != list(range(found.shards)):
        raise ValueError("a shard has two files, or none")


def _read_here(place: str, read: Callable[[str], Manifest]) -> Manifest:
    return read(place)


def read_chain(
    url: str, look: Callable[[str, Callable[[str], Manifest]], Manifest] = _read_here
) -> list[Manifest]:
    """Return a checkpoint and all it builds on, the full one first.

    Args:
        url: As of `gradring.ps.saved.files.absolute`.
        look: Calls what it gets with the place that it gets, where that may hang.

    Raises:
        InvalidArgument: As `read`, for any of them.
        ProtocolError: As `read`; or the one it builds on is another one than when it was written,
            or more than `LONGEST_CHAIN` build on each other.
        DeviceError: As `read`.
    """
    chain = [look(url, read_followed)]
    while (base := chain[0].base) is not None:
        below = look(files.joined(chain[0].url, base), read)
        if below.cut != chain[0].base_cut or below.shards != chain[0].shards:
            raise ProtocolError(
                f"{chain[0].url} builds on cut {chain[0].base_cut} at {below.url}, but there is "
                f"cut {below.cut} now: it was written anew"
            )
        if any(below.cut == above.cut for above in chain):
            raise ProtocolError(f"{url}: checkpoints build on each other in a circle")
        chain.insert(0, below)
        if len(chain) > LONGEST_CHAIN:
            raise ProtocolError(
                f"{url} builds on more than {LONGEST_CHAIN - 1} others, as no save makes them"
            )
    return chain


def read_followed(url: str) -> Manifest:
    """Return the manifest of what a URL, maybe a link's, leads to; see `read`."""
    return read(files.followed(url))


def as_seen_from(url: str, base: str) -> str:
    """Return ``base`` relative to ``url`` where they lie beside each other, so they can move."""
    parent, name = files.split(base)
    if not files.is_same_folder(parent, files.split(url)[0]):
        return base
    # One that leads elsewhere would be found out only when it is wanted.
    leads_back = files.is_same_folder(files.joined(url, f"../{name}"), base)
    return f"../{name}" if leads_back else base
