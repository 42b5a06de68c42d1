"""Files that a command writes in the end: looked at before it starts, so that no work is lost."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gradring.errors import InvalidArgument


class CannotWrite(Exception):  # noqa: N818 - says what happened
    """A file could not be written after all; the text says which and why."""


_MOUNTS = Path("/proc/self/mountinfo")


def require_writable(
    path: str | os.PathLike[str] | None, option: str, *, is_replaced: bool = False
) -> None:
    """Check that a file can be made, or made anew; what is in it stays for now.

    Args:
        path: The file; ``None`` and ``-`` are none.
        option: Where the path came from, for the message.
        is_replaced: By `write_whole`, which makes another file beside it.

    Raises:
        InvalidArgument: It cannot.
    """
    if path is None or os.fspath(path) == "-":
        return
    file = Path(path)
    try:
        is_new = not file.exists()
        if is_new:
            # A link may lead to nothing yet: what is made here, and removed, is not the link.
            file = Path(os.path.realpath(path))
        if not is_new and not file.is_file() and not file.is_dir():
            return  # A pipe: its reader would take our looking for the end.
        with file.open("ab"):
            pass
        if is_new:
            file.unlink(missing_ok=True)  # Who else looked may have been faster.
        elif is_replaced and not _is_standard_output(file) and not _is_written_in_place(file):
            unfinished = _unfinished(Path(os.path.realpath(file)))
            with unfinished.open("ab"):
                pass
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidArgument(
            f"{option} {os.fspath(path)}: cannot be written: {error.strerror}"
        ) from None


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file whole or not at all; at the end of a symlink, which stays one.

    What is no regular file (a pipe, a device), or mounted into a container by itself, is written to
    as it is: it could not be replaced. Who may read and write a file stays as it was; what goes to
    this process's standard output, by whatever name, goes there behind what was printed.

    Raises:
        OSError: It cannot be written.
    """
    if _is_standard_output(Path(path)):
        print(text, end="", flush=True)
        return
    if Path(path).exists() and _is_written_in_place(Path(path)):
        Path(path).write_text(text)
        return
    target = Path(os.path.realpath(path))
    unfinished = _unfinished(target)
    try:
        if target.exists():
            unfinished.touch(0o600)  # Until it is known who may read it.
            unfinished.write_text(text)
            _give_rights_of(target, unfinished)
        else:
            unfinished.write_text(text)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], document: object) -> None:
    """Write a document as JSON, as `write_whole` does.

    Raises:
        CannotWrite: That failed.
    """
    with writing(path) as file:
        write_whole(file, json.dumps(document, indent=1) + "\n")


def _give_rights_of(target: Path, unfinished: Path) -> None:
    was = target.stat()
    for user, group in ((-1, was.st_gid), (was.st_uid, -1)):
        with contextlib.suppress(OSError):  # Root may give a file away, others hardly.
            os.chown(unfinished, user, group)
    unfinished.chmod(stat.S_IMODE(was.st_mode))


def _unfinished(target: Path) -> Path:
    # A short name: that of the target may already be as long as can be.
    return target.with_name(f"gradring.{os.getpid()}.part")


def _is_standard_output(file: Path) -> bool:
    # Replaced, or opened once more, it would lose what is printed there.
    try:
        return os.path.samestat(file.stat(), os.fstat(1))
    except OSError:
        return False


def _is_written_in_place(file: Path) -> bool:
    if not file.is_file():
        return True
    name = os.path.realpath(file)
    for plain, escaped in (("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")):
        name = name.replace(plain, escaped)
    try:
        mounts = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    return any(line.split(" ")[4:5] == [name] for line in mounts)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file inside this.

    Raises:
        CannotWrite: That failed.
    """
    try:
        yield Path(path)
    except OSError as error:
        raise CannotWrite(f"cannot write {os.fspath(path)}: {error.strerror}") from error
