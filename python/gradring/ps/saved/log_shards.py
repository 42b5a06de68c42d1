"""`require_shards`: no shard of a log is gone while others have something.

A shard whose whole folder is missing would begin empty, beside others that come back.
"""

from __future__ import annotations

from pathlib import Path

from gradring.errors import InvalidArgument

_EMPTY_BYTES = 112  # A segment's header, and the batch that ends it.


def require_shards(log: Path, index: int, servers: int, threads: int) -> None:
    """Check that what one server has in a log's folder fits what is there of all shards.

    Workers connect to all servers before they send anything: where one shard has a record, every
    one has had a segment.

    Args:
        log: The log's folder; other servers may share it.
        index: Which server it is.
        servers: How many there are.
        threads: Shards of each.

    Raises:
        InvalidArgument: A shard of this server has nothing, but another one has; names both.
    """
    shards = servers * threads
    folders = {path.name: path for path in log.glob(f"shard-*-of-{shards:05}")}
    one_with_records = next((path for path in folders.values() if _has_records(path)), None)
    if one_with_records is None:
        return
    for shard in range(index * threads, (index + 1) * threads):
        folder = log / f"shard-{shard:05}-of-{shards:05}"
        if folder.name not in folders or not _has_anything(folder):
            raise InvalidArgument(
                f"serve: {folder} is missing or empty, but {one_with_records} has what workers "
                "pushed to a shard beside it: this one would begin empty. Bring it back, or remove "
                "the logs of all servers and load a checkpoint"
            )


def _has_records(folder: Path) -> bool:
    if any(folder.glob("snapshot-*.grps")):
        return True
    try:
        return any(path.stat().st_size > _EMPTY_BYTES for path in folder.glob("segment-*.log"))
    except FileNotFoundError:  # Another server's, which has a snapshot in its place by now.
        return True


def _has_anything(folder: Path) -> bool:
    """Tell whether there is a log to go on from; what that itself lacks it says."""
    return any(
        any(folder.glob(names)) for names in ("segment-*.log", "snapshot-*.grps", "newest-*")
    )
