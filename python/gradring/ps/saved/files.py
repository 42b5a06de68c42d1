"""Folders of checkpoints: on a disk without any extra, elsewhere through fsspec.

`folder` takes a path, a ``file://`` URL or any URL that fsspec knows. Used by the saver and by the
servers' threads; a folder belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from gradring.errors import DeviceError, Error, InvalidArgument

# What fsspec needs besides itself, by the URL's protocol.
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hdfs": "pyarrow",
    "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", "http": "aiohttp", "https": "aiohttp",
    "sftp": "paramiko", "ssh": "paramiko", "smb": "smbprotocol", "oss": "ossfs",
}  # fmt: skip


class Sink(Protocol):
    """A file that is being written."""

    # Of the open file, for compiled code that writes all of it by itself; None: there is no such.
    descriptor: int | None

    def write(self, parts: Sequence[bytes]) -> None:
        """Append these bytes, all of them."""


class Folder(Protocol):
    """Files beside each other, by name. Failures are `DeviceError` that names the file."""

    url: str

    def create(self, name: str) -> contextlib.AbstractContextManager[Sink]:
        """Write a file that is there in the end, whole and durable, or not at all."""

    def claim(self) -> contextlib.AbstractContextManager[None]:
        """Keep other savers out, where the system can; `InvalidArgument` if one is in."""

    def open(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Read a file from its beginning."""

    def bytes_of(self, name: str) -> int | None:
        """Return a file's length, None if there is none."""


def folder(url: str) -> Folder:
    """Return the folder at a path or URL; nothing is made or looked at yet.

    Args:
        url: A path, ``file:///...`` or any URL that fsspec knows, such as ``s3://bucket/step-100``.

    Raises:
        InvalidArgument: The package for this kind of URL is not installed; names it.
    """
    path = local_path(url)
    return _RemoteFolder(url) if path is None else _LocalFolder(path)


def local_path(url: str) -> Path | None:
    """Return the path of a path or ``file://`` URL, absolute; None for another URL."""
    if "://" not in url:
        return Path(url).expanduser().absolute()
    parts = urlsplit(url)
    if parts.scheme not in {"file", "local"}:
        return None
    if parts.netloc not in {"", "localhost"}:
        raise InvalidArgument(
            f"{url!r} names a host, {parts.netloc!r}; a file URL has three slashes: file:///path"
        )
    return Path(unquote(parts.path))


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
    if "\0" in given or not _is_unicode(given):
        raise InvalidArgument(
            f"{given!r} is no place: it has a character that UTF-8 has not, or NUL"
        )
    path = local_path(given)
    if path is not None:
        # `..` behind a link leads elsewhere than its text says.
        return os.path.realpath(path) if ".." in path.parts else str(path)
    scheme, _, rest = given.partition("://")
    if not rest.strip("/"):
        raise InvalidArgument(f"{given!r} names no place: there is no path in it")
    return f"{scheme}://{rest.rstrip('/')}"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # What the system had that is no UTF-8.
        return False
    return True


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
    head, _, tail = url.rstrip("/").partition("://")
    return f"{head}://{os.path.normpath(f'{tail}/{other}')}"


def read_all(where: Folder, name: str) -> bytes:
    """Return a whole file.

    Raises:
        DeviceError: It cannot be read.
    """
    with where.open(name) as file, _named(f"{where.url}/{name}", "read"):
        return file.read()


@contextlib.contextmanager
def _named(path: str, verb: str, kind: type[Exception] = OSError) -> Iterator[None]:
    try:
        yield
    except Error:
        raise  # Some of ours are OSErrors too.
    except kind as error:
        said = getattr(error, "strerror", None) or error
        raise DeviceError(f"{path} cannot be {verb}: {said}") from error


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
        draft = self._path / f".{name}.{os.getpid()}.draft"
        with _named(str(target), "written"):
            self._path.mkdir(parents=True, exist_ok=True)
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
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
        with _named(self.url, "written"):
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
    def open(self, name: str) -> Iterator[BinaryIO]:
        path = self._path / name
        with _named(str(path), "read"):
            file = path.open("rb", buffering=0)
        with file:
            yield file

    def bytes_of(self, name: str) -> int | None:
        path = self._path / name
        with _named(str(path), "read"):
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


class _RemoteSink:
    descriptor: int | None = None

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            self._file.write(part)


class _RemoteFolder:
    """What fsspec knows. Its files are there when they are closed, in one piece on most stores."""

    def __init__(self, url: str) -> None:
        protocol = url.partition("://")[0]
        try:
            import fsspec
        except ImportError as error:
            raise InvalidArgument(
                f"{url!r}: URLs other than paths and file:// go through fsspec: "
                f"pip install gradring[fs]{_and_package(protocol)}"
            ) from error
        try:
            self._files, self._path = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise InvalidArgument(
                f"{url!r}: fsspec needs another package for {protocol}://: pip install "
                f"gradring[fs]{_and_package(protocol)} ({error})"
            ) from error
        except ValueError as error:
            raise InvalidArgument(f"{url!r}: {error}") from error
        self.url = url.rstrip("/")

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        named = functools.partial(_named, f"{self.url}/{name}", "written")
        with named(Exception):
            self._files.makedirs(self._path, exist_ok=True)
            file = self._files.open(f"{self._path}/{name}", "wb")
        with named():  # What the user of the file raises is their own.
            try:
                yield _RemoteSink(file)
            except BaseException:
                if hasattr(file, "discard"):
                    file.discard()
                raise
        with named(Exception):
            file.close()

    def claim(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # No store that fsspec knows has locks.

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with _named(f"{self.url}/{name}", "read", Exception):
            file = self._files.open(f"{self._path}/{name}", "rb")
        with file:
            yield file

    def bytes_of(self, name: str) -> int | None:
        # Exception: stores have errors of their own.
        with _named(f"{self.url}/{name}", "read", Exception):
            self._files.invalidate_cache()
            try:
                return int(self._files.size(f"{self._path}/{name}"))
            except FileNotFoundError:
                return None


def _and_package(protocol: str) -> str:
    package = _PACKAGES.get(protocol)
    return f" {package}" if package else ""
