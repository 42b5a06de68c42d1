"""`LoadNote`: how far a server has come with the checkpoint that its log begins with.

A file beside the shards' folders: ``loading-...`` before anything is loaded, renamed to
``loaded-...`` once every shard has on its disk what was loaded. A server that finds the first was
ended in between, before any client was let in: what it left is removed, and it loads again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from gradring.errors import DeviceError, InvalidArgument
from gradring.ps.saved import files

UNKNOWN = (1 << 64) - 1  # A cut that nobody compares.


class LoadNote:
    """The note of one server."""

    def __init__(self, log: Path, index: int, servers: int, threads: int) -> None:
        """Look at nothing yet.

        Args:
            log: The server's log folder; others may share it.
            index: Which server it is.
            servers: How many there are.
            threads: Shards of each.
        """
        self._log = log
        self._of = f"{index:05}-of-{servers:05}"
        shards = range(index * threads, (index + 1) * threads)
        self._folders = [log / f"shard-{shard:05}-of-{servers * threads:05}" for shard in shards]

    def has_loaded(self, url: str) -> bool:
        """Tell whether the log goes on from the checkpoint.

        Raises:
            InvalidArgument: It is a log of something else, or lacks what was loaded.
        """
        if (beginning := self.beginning()) is not None:
            self._require_same(beginning[1], url)
            return True
        if not self._loading.exists():
            self._require_none()
        return False

    def beginning(self) -> tuple[int, str] | None:
        """Return the cut and the place of the checkpoint that the log began with, if it did.

        Older servers have not written the cut: then it is `UNKNOWN`.
        """
        if not self._loaded.exists():
            return None
        text = self._loaded.read_text().rstrip("\n")
        place, _, cut = text.rpartition("\n")
        return (int(cut), place) if place and cut.isdecimal() else (UNKNOWN, text)

    def require_whole(self) -> None:
        """Check that the log is none of a load that was cut short.

        Raises:
            InvalidArgument: It is: shards may have parts of it.
        """
        if self._loading.exists():
            place = self._loading.read_text().partition("\n")[0]
            raise InvalidArgument(
                f"serve: the log in {self._log} was to begin with the checkpoint {place}, and "
                "loading that was cut short; give --load again, or remove the log"
            )

    def begin(self, url: str) -> None:
        """Write that the checkpoint is about to be loaded; what a try before has left goes.

        Raises:
            InvalidArgument: Another server has the log.
            DeviceError: It cannot be written.
        """
        with self._writing():
            for folder in self._folders:
                if folder.is_dir():
                    _require_free(folder)
                    shutil.rmtree(folder)
            self._log.mkdir(parents=True, exist_ok=True)
            with self._loading.open("w") as file:
                file.write(f"{files.absolute(url)}\n")  # Whatever folder the next start is in.
                file.flush()
                os.fsync(file.fileno())
            self._sync_folder()

    def end(self, cut: int) -> None:
        """Write that all of it is on the disk.

        Args:
            cut: The checkpoint's number: by then its place may lead to another one.

        Raises:
            DeviceError: It cannot be written.
        """
        with self._writing():
            # A load that ends in between these lines begins again, and writes all of it anew.
            with self._loading.open("a") as file:
                file.write(f"{cut}\n")
                file.flush()
                os.fsync(file.fileno())
            self._loading.rename(self._loaded)
            self._sync_folder()

    @property
    def _loading(self) -> Path:
        return self._log / f"loading-{self._of}"

    @property
    def _loaded(self) -> Path:
        return self._log / f"loaded-{self._of}"

    def _require_same(self, loaded: str, url: str) -> None:
        if files.absolute(loaded) != files.absolute(url):
            raise InvalidArgument(
                f"serve: the log in {self._log} began with the checkpoint {loaded}, not with "
                f"{url}; leave out --load to go on from it, or remove it"
            )
        for folder in self._folders:
            # With another number of shards the log itself is refused.
            if not any(folder.glob("snapshot-*.grps")) and not self._has_other_layout(folder):
                raise InvalidArgument(
                    f"serve: the log in {self._log} began with the checkpoint {loaded}, but "
                    f"{folder} has no snapshot of it any more; bring it back, or remove the whole "
                    "log to load the checkpoint again"
                )

    def _has_other_layout(self, folder: Path) -> bool:
        layout = folder.name.rpartition("-of-")[2]
        return any(
            other.name.rpartition("-of-")[2] != layout for other in self._log.glob("shard-*-of-*")
        )

    def _require_none(self) -> None:
        for folder in self._folders:
            if folder.is_dir() and any(folder.iterdir()):
                raise InvalidArgument(
                    f"serve: there is a log in {folder}, which --load would replace; leave out "
                    "--load to go on from it, or remove it"
                )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DeviceError(f"log: {self._log} cannot be written: {error.strerror}") from error

    def _sync_folder(self) -> None:
        descriptor = os.open(self._log, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _require_free(folder: Path) -> None:
    try:
        with (folder / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidArgument(
            f"serve: the log in {folder} is in use by another server; each has a folder of its own"
        ) from None
