"""Folders of checkpoints: on a disk without any extra, elsewhere through fsspec.

`folder` takes a path, a ``file://`` URL or any URL that fsspec knows (`gradring.ps.saved.stores`).
Used by the saver and by the servers' threads; a folder belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from gradring.errors import DeviceError, Error, InvalidArgument

NAME_BYTES = 255  # Linux's limit, and of all its file systems that anybody saves to.


class Sink(Protocol):
    """A file that is being written."""

    # Of the open file, for compiled code that writes all of it by itself; None: there is no such.
    descriptor: int | None

    def write(self, parts: Sequence[bytes]) -> None:
        """Append these bytes, all of them."""


class Source:
    """A file that is being read, from its beginning."""

    def __init__(self, file: Any, path: str) -> None:
        """Take an open file; ``path`` is what errors call it."""
        self._file = file
        self._path = path

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most ``size`` of them; none at the end.

        Raises:
            DeviceError: They cannot be read.
        """
        with named(self._path, "read"):
            data: bytes = self._file.read(size)
            return data


class Folder(Protocol):
    """Files beside each other, by name. Failures are `DeviceError` that names the file."""

    url: str

    def create(self, name: str) -> contextlib.AbstractContextManager[Sink]:
        """Write a file that is there in the end, whole and durable, or not at all."""

    def claim(self) -> contextlib.AbstractContextManager[None]:
        """Keep other savers out, where the system can; `InvalidArgument` if one is in."""

    def open(self, name: str) -> contextlib.AbstractContextManager[Source]:
        """Read a file from its beginning."""

    def bytes_of(self, name: str) -> int | None:
        """Return a file's length, None if there is none."""


def folder(url: str) -> Folder:
    """Return the folder at a path or URL; nothing is made or looked at yet.

    Args:
        url: A path, ``file:///...`` or any URL that fsspec knows, such as ``s3://bucket/step-100``.

    Raises:
        InvalidArgument: The package for this kind of URL is not installed; names it.
        DeviceError: A store that is connected to at once cannot be reached.
    """
    path = local_path(url)
    if path is not None:
        return _LocalFolder(path)
    from gradring.ps.saved.stores import RemoteFolder

    return RemoteFolder(url)


def local_path(url: str) -> Path | None:
    """Return the path of a path or ``file:`` URL, absolute; None for another URL.

    Raises:
        InvalidArgument: It is a path of a user that is not there, or a ``file:`` URL with what has
            no place in a path.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme.lower() in {"file", "local"} and rest.startswith("/"):
        return _path_of_url(url, rest)
    if "://" in url:
        return None
    try:
        return Path(url).expanduser().absolute()
    except RuntimeError as error:  # ~ of nobody.
        raise InvalidArgument(f"{url!r} is no place: {error}") from error


def _path_of_url(url: str, rest: str) -> Path:
    host, _, quoted = rest.removeprefix("//").partition("/")
    if host not in {"", "localhost"}:
        raise InvalidArgument(
            f"{url!r} names a host, {host!r}; a file URL has three slashes: file:///path"
        )
    if "?" in quoted or "#" in quoted:  # A URL's path ends there, a file's name need not.
        raise InvalidArgument(
            f"{url!r} has a ? or #, which end the path of a URL: write %3F and %23, or give a path"
        )
    try:
        path = unquote(quoted, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{url!r} is no place: {error}") from error
    return Path(f"/{_require_text(path)}")


def absolute(url: str | os.PathLike[str]) -> str:
    """Return a URL or path that means the same in a process with another working folder.

    Raises:
        InvalidArgument: It is neither, or empty.
    """
    try:
        given = os.fspath(url)
    except TypeError:
        given = None
    if not isinstance(given, str) or not given:
        raise InvalidArgument(f"a place is a path or a URL, such as /ckpt/step-1000, not {url!r}")
    path = local_path(_require_text(given))
    if path is not None:
        # `..` behind a link leads elsewhere than its text says.
        return os.path.realpath(path) if ".." in path.parts else str(path)
    scheme, _, rest = given.partition("://")
    if not rest.strip("/"):
        raise InvalidArgument(f"{given!r} names no place: there is no path in it")
    return f"{scheme}://{rest.rstrip('/')}"


def _require_text(place: str) -> str:
    try:
        has_nul = b"\0" in place.encode()
    except UnicodeEncodeError:  # What the system had that is no UTF-8.
        has_nul = True
    if has_nul:
        raise InvalidArgument(
            f"{place!r} is no place: it has a character that UTF-8 has not, or NUL"
        )
    return place


def followed(url: str) -> str:
    """Return where a place of `absolute` really is, if it is a symbolic link, such as ``latest``.

    What lies beside it is beside what the link leads to, and the link may lead elsewhere later.
    """
    path = local_path(url)
    # Of a name that is too long to be one Path.is_symlink() raises; whoever opens it says so.
    is_link = path is not None and os.path.islink(path)  # noqa: PTH114
    return os.path.realpath(path) if path is not None and is_link else url


def is_same_folder(one: str, other: str) -> bool:
    """Tell whether two folders of `split` are one, whatever links their paths go through."""
    if one == other:
        return True
    paths = [path for path in (local_path(one), local_path(other)) if path is not None]
    return len(paths) == 2 and len({os.path.realpath(path) for path in paths}) == 1


def split(url: str) -> tuple[str, str]:
    """Return the folder that a path or URL of `absolute` is in, and its name there."""
    parent, _, name = url.rpartition("/")
    return f"{parent}/" if parent.endswith(":/") else parent or "/", name


def joined(url: str, other: str) -> str:
    """Return ``other`` as seen from the folder ``url``: as it is, unless it is relative."""
    if "://" in other or other.startswith("/"):
        return other
    path = local_path(url)
    if path is not None:
        return os.path.normpath(path / other)
    # By its text: what stores make of `//`, `.` and `..` differs, and most keep them as they are.
    head, _, inside = f"{url.rstrip('/')}/".partition("://")
    while other.startswith("../"):
        above = inside.removesuffix("/")
        inside, other = above[: above.rfind("/") + 1], other[len("../") :]
    return f"{head}://{inside}{other}"


def read_all(where: Folder, name: str) -> bytes:
    """Return a whole file.

    Raises:
        DeviceError: It cannot be read.
    """
    with where.open(name) as file:
        return file.read()


@contextlib.contextmanager
def named(path: str, verb: str, kind: type[Exception] = Exception) -> Iterator[None]:
    """Make errors inside `DeviceError` that says which file cannot be read or written.

    Args:
        path: The file, or the folder.
        verb: What cannot be done to it.
        kind: Of the errors that are meant; stores have such as are no OSErrors.
    """
    try:
        yield
    except Error:
        raise  # Some of ours are OSErrors too.
    except kind as error:
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DeviceError(f"{path} cannot be {verb}: {said}") from error


def draft_name(name: str) -> str:
    """Return what a file is called until it is whole: one name for each who writes it.

    Who they are does not tell them apart: processes in two containers may have the same number. Of
    a name that has no room for more it is the beginning.
    """
    ending = f".{secrets.token_hex(8)}.draft"
    room = NAME_BYTES - len(ending) - 1
    return f".{name.encode()[:room].decode(errors='ignore')}{ending}"


def require_name(url: str) -> None:
    """Refuse a file's path of `absolute` that no disk has room for the name of; not a store's URL.

    Raises:
        InvalidArgument: It is longer than `NAME_BYTES`.
    """
    path = local_path(url)
    if path is not None and (found := len(os.fsencode(path.name))) > NAME_BYTES:
        raise InvalidArgument(
            f"{url!r} is no place: a file's name has at most {NAME_BYTES} bytes, this one {found}"
        )


class _LocalSink:
    def __init__(self, file: int) -> None:
        self.descriptor: int | None = file
        self._file = file

    def write(self, parts: Sequence[bytes]) -> None:
        left = [memoryview(part) for part in parts if part]
        while left:
            wrote = os.writev(self._file, left)
            while left and wrote >= len(left[0]):
                wrote -= len(left.pop(0))
            if left:
                left[0] = left[0][wrote:]


class _LocalFolder:
    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self._path = path

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        target = self._path / name
        draft = self._path / draft_name(name)
        with named(str(target), "written", OSError):
            self._path.mkdir(parents=True, exist_ok=True)
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                try:
                    yield _LocalSink(file)
                    os.fsync(file)
                finally:
                    os.close(file)
                draft.replace(target)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
            _sync_names(self._path)

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        with named(self.url, "written", OSError):
            self._path.mkdir(parents=True, exist_ok=True)
            names = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(names, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidArgument(
                    f"another save is writing to {self.url}; each has a place of its own"
                ) from error
            except OSError:
                pass  # No locks here: the manifest is whole all the same.
            yield
        finally:
            os.close(names)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[Source]:
        path = self._path / name
        with named(str(path), "read", OSError):
            file = path.open("rb", buffering=0)
        with file:
            yield Source(file, str(path))

    def bytes_of(self, name: str) -> int | None:
        path = self._path / name
        with named(str(path), "read", OSError):
            try:
                return path.stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None


def _sync_names(path: Path) -> None:
    names = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(names)
    finally:
        os.close(names)
