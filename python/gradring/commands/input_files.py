"""Files that a command reads from a folder; an unreadable folder is not taken for an empty one."""

from __future__ import annotations

from pathlib import Path

from gradring.errors import InvalidArgument


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder whose names match, sorted by name.

    Raises:
        InvalidArgument: The folder cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.match(pattern))
    except OSError as error:
        raise cannot_read(folder, error) from None


def cannot_read(path: Path, error: OSError) -> InvalidArgument:
    """Return the error that says which file cannot be read, and why."""
    return InvalidArgument(f"{path}: cannot be read: {error.strerror}")
