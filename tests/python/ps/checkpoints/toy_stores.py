"""Stores behind fsspec, for the tests of checkpoints, each over a dictionary.

``toyobjects`` is like an object store: a file is there when its last part is. ``toydisk`` is like a
disk behind SFTP or SMB: a file is there from its first byte, and is moved onto nothing that is
there. Both remember listings, each thread's instance its own, until they are told to forget.
"""

from __future__ import annotations

import io
import threading
from typing import Any, ClassVar

from fsspec import AbstractFileSystem, register_implementation
from fsspec.spec import AbstractBufferedFile


class _Store(AbstractFileSystem):
    contents: ClassVar[dict[str, bytes]]

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        path = self._strip_protocol(path).rstrip("/")
        if path not in self.dircache:
            # Of one level only: nobody here lists folders above.
            self.dircache[path] = [
                {"name": name, "size": len(data), "type": "file"}
                for name, data in self.contents.items()
                if name.rpartition("/")[0].rstrip("/") == path or name == path
            ]
        found = self.dircache[path]
        if not found:
            raise FileNotFoundError(path)
        return found if detail else [one["name"] for one in found]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def rm_file(self, path: str) -> None:
        if self.contents.pop(self._strip_protocol(path), None) is None:
            raise FileNotFoundError(path)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        return self.contents[self._strip_protocol(path)][start:end]


class Upload(AbstractBufferedFile):
    """A file that is uploaded in parts."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> bool:
        self.parts.append(self.buffer.getvalue())
        if final:
            self.fs.contents[self.path] = b"".join(self.parts)
        return True


class ObjectStore(_Store):
    protocol = "toyobjects"
    contents: ClassVar[dict[str, bytes]] = {}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return Upload(self, path, mode, **{**options, "block_size": 1 << 12})


class InPlace(io.BytesIO):
    """A file that everybody sees grow."""

    def __init__(self, contents: dict[str, bytes], path: str) -> None:
        super().__init__()
        self._of = contents, path
        contents[path] = b""

    def write(self, data: Any) -> int:
        written = super().write(data)
        contents, path = self._of
        contents[path] = self.getvalue()
        return written


class Disk(_Store):
    protocol = "toydisk"
    contents: ClassVar[dict[str, bytes]] = {}
    says_so = True  # When it did not move.

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return InPlace(self.contents, path) if mode == "wb" else io.BytesIO(self.contents[path])

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        if path2 not in self.contents:
            self.contents[path2] = self.contents.pop(path1)
        elif self.says_so:
            raise FileExistsError(path2)


class _HangingUpload(Upload):
    def _upload_chunk(self, final: bool = False) -> bool:
        if final:
            HangingStore.hang_at(f"{self.path} end")
        return super()._upload_chunk(final)


class HangingStore(ObjectStore):
    """Where files of one ending cannot be opened, or ended, until ``goes_on`` is set."""

    protocol = "toyhangs"
    contents: ClassVar[dict[str, bytes]] = {}
    ending = "nothing"  # Of files, and what is done to them: "grps wb", "grps end".
    hangs = threading.Event()
    goes_on = threading.Event()

    @classmethod
    def hang_at(cls, what: str) -> None:
        if what.endswith(cls.ending) and not cls.goes_on.is_set():
            cls.hangs.set()
            assert cls.goes_on.wait(60)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.hang_at(f"{path} {mode}")
        if mode == "rb":
            return io.BytesIO(self.contents[self._strip_protocol(path)])
        return _HangingUpload(self, path, mode, **options)


for _one in (ObjectStore, Disk, HangingStore):
    register_implementation(_one.protocol, _one, clobber=True)

ALL_CONTENTS = (ObjectStore.contents, Disk.contents, HangingStore.contents)
