"""`Claimed`: a place for a checkpoint while one saver writes there."""

from __future__ import annotations

import contextlib
import threading

from gradring.errors import InvalidArgument, TimedOut
from gradring.ps.saved import files, manifest


class Claimed:
    """A folder without a checkpoint that no other saver is in.

    Who saves may give it up while a thread of its own publishes: then no manifest comes, or, where
    that was being written, others are kept out until it has.

    Attributes:
        place: Its URL, links followed.
        where: The same as a folder.
    """

    def __init__(self, place: str, where: files.Folder, held: contextlib.ExitStack) -> None:
        """Keep what holds it."""
        self.place = place
        self.where = where
        self._held = held
        self._lock = threading.Lock()
        self._is_given_up = False
        self._is_coming = False

    def give_up(self) -> bool:
        """Have no manifest come, and tell whether that could be had."""
        with self._lock:
            self._is_given_up = True
            if not self._is_coming:
                self._held.close()
            return not self._is_coming

    def begin_manifest(self) -> None:
        """Have others kept out until the manifest is written.

        Raises:
            TimedOut: It was given up.
        """
        with self._lock:
            if self._is_given_up:
                raise TimedOut(f"{self.place}: nobody waits for it any more")
            self._is_coming = True

    def let_go(self) -> None:
        """Have the place be anybody's."""
        with self._lock:
            self._held.close()


def claim(asked: str) -> Claimed:
    """Take a place that has no checkpoint, for one saver.

    Args:
        asked: As of `gradring.ps.saved.files.absolute`.

    Raises:
        InvalidArgument: There is a checkpoint, or another saver is writing there.
    """
    place = files.followed(asked)
    where = files.folder(place)
    with contextlib.ExitStack() as held:
        held.enter_context(where.claim())
        if where.bytes_of(manifest.NAME) is not None:
            raise InvalidArgument(
                f"there is a checkpoint at {where.url} already; each has a place of its own, for "
                "example .../step-1000"
            )
        return Claimed(place, where, held.pop_all())
