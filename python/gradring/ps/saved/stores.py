"""`RemoteFolder`: a folder of checkpoints on whatever fsspec knows.

Made by `gradring.ps.saved.files.folder` for URLs that are no paths. Object stores show a file when
it is closed, whole; others show it from its first byte, or before: there it is written under a
draft's name, and moved.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradring.errors import DeviceError, InvalidArgument
from gradring.ps.saved import files

# What fsspec needs besides itself, by the URL's protocol.
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hdfs": "pyarrow",
    "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", "http": "aiohttp", "https": "aiohttp",
    "sftp": "paramiko", "ssh": "paramiko", "smb": "smbprotocol", "oss": "ossfs",
}  # fmt: skip

_Writing = Callable[[], contextlib.AbstractContextManager[None]]


class _RemoteSink:
    descriptor: int | None = None

    def __init__(self, file: Any, writing: _Writing) -> None:
        self._file = file
        self._writing = writing

    def write(self, parts: Sequence[bytes]) -> None:
        with self._writing():
            for part in parts:
                self._file.write(part)


def _require_chain(url: str, fsspec: Any) -> None:
    """Refuse `::` in a name: fsspec would take what is before it, and save somewhere else."""
    known = {*fsspec.available_protocols(), *fsspec.registry}  # Also what programs registered.
    for part in url.split("::")[1:]:
        if part.partition("://")[0] not in known:
            raise InvalidArgument(
                f"{url!r}: '::' joins two stores of fsspec, and {part!r} is none: use another name"
            )


class RemoteFolder:
    """A `gradring.ps.saved.files.Folder` behind fsspec."""

    def __init__(self, url: str) -> None:
        """Find what serves the URL; some of them connect at once.

        Raises:
            InvalidArgument: A package is not installed; names it. Or nobody knows such URLs.
            DeviceError: The store cannot be reached.
        """
        protocol = url.partition("://")[0]
        try:
            import fsspec
        except ImportError as error:
            raise InvalidArgument(
                f"{url!r}: URLs other than paths and file:// go through fsspec: "
                f"pip install gradring[fs]{_and_package(protocol)}"
            ) from error
        _require_chain(url, fsspec)
        try:
            self._files, self._path = fsspec.core.url_to_fs(url)  # Without slashes at its end.
        except ImportError as error:
            raise InvalidArgument(
                f"{url!r}: fsspec needs another package for {protocol}://: pip install "
                f"gradring[fs]{_and_package(protocol)} ({error})"
            ) from error
        except ValueError as error:
            raise InvalidArgument(f"{url!r}: {error}") from error
        except Exception as error:
            said = str(error) or type(error).__name__
            raise DeviceError(f"{url} cannot be reached: {said}") from error
        is_root = url.endswith("://")
        self.url = url[:-1] if is_root else url
        # To an object store a//b is another name than a/b.
        self._inside = self._path if is_root else self._path + url[len(url.rstrip("/")) :]
        # Object stores are spoken to asynchronously; their moves would copy.
        is_whole_at_once = self._files.async_impl
        self._renames = _has_own_move(self._files) and not is_whole_at_once
        self._takes_drafts = self._renames or _is_in_memory(self._files)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[files.Sink]:
        """Write a file; an older one of that name stays until this one is whole."""
        writing = functools.partial(files.named, f"{self.url}/{name}", "written")
        draft = files.draft_name(name) if self._takes_drafts else name
        with writing():
            self._files.makedirs(self._path, exist_ok=True)
            file = self._files.open(self._of(draft), "wb")
        try:
            yield _RemoteSink(file, writing)  # What the user of the file raises is their own.
            with writing():
                file.close()
                if draft != name:
                    self._move(draft, name)
        except BaseException:
            self._let_go(file, draft, is_draft=draft != name)
            raise

    def claim(self) -> contextlib.AbstractContextManager[None]:
        """Keep nobody out: no store that fsspec knows has locks."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[files.Source]:
        """Read a file from its beginning."""
        path = f"{self.url}/{name}"
        with files.named(path, "read"):
            file = self._files.open(self._of(name), "rb")
        try:
            yield files.Source(file, path)
        finally:
            with contextlib.suppress(Exception):  # Everything that was wanted is read.
                file.close()

    def bytes_of(self, name: str) -> int | None:
        """Return a file's length, None if there is none."""
        with files.named(f"{self.url}/{name}", "read"):
            self._files.invalidate_cache()
            try:
                return int(self._files.size(self._of(name)))
            except FileNotFoundError:
                return None

    def _of(self, name: str) -> str:
        return f"{self._inside}/{name}"

    def _move(self, draft: str, name: str) -> None:
        if not self._renames:
            self._files.cp_file(self._of(draft), self._of(name))
            self._files.rm_file(self._of(draft))
            return
        try:
            self._files.mv(self._of(draft), self._of(name))
            if self.bytes_of(draft) is None:
                return
        except Exception:
            if self.bytes_of(name) is None:
                raise
        # Some move onto nothing that is there already, and webhdfs does not even say so.
        self._files.rm_file(self._of(name))
        self._files.mv(self._of(draft), self._of(name))

    def _let_go(self, file: Any, name: str, *, is_draft: bool) -> None:
        """End a file that is not to be. Nothing here may hide the failure that led to it."""
        from fsspec.spec import AbstractBufferedFile

        is_discarded = is_buffered = isinstance(file, AbstractBufferedFile)
        with contextlib.suppress(Exception):
            file.discard()
            is_discarded = True
        if is_buffered:
            # Else it would upload what it has, and be there, as soon as nobody holds it any more.
            file.closed = True
        elif not is_discarded:
            with contextlib.suppress(Exception):
                file.close()
        if is_draft or not is_discarded:  # Else an older one of that name is there, and good.
            with contextlib.suppress(Exception):
                self._files.rm_file(self._of(name))


def _and_package(protocol: str) -> str:
    package = _PACKAGES.get(protocol)
    return f" {package}" if package else ""


def _has_own_move(store: Any) -> bool:
    """Tell whether a store can give a file another name; else fsspec copies it."""
    from fsspec import AbstractFileSystem

    return type(store).mv is not AbstractFileSystem.mv


def _is_in_memory(store: Any) -> bool:
    """Tell whether it is ``memory://``, whose files are there as soon as they are opened."""
    from fsspec.implementations.memory import MemoryFileSystem

    return isinstance(store, MemoryFileSystem)
