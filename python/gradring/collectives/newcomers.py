"""`join()`: into a job that runs already, when its ranks call `Communicator.grow`."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
import time
import warnings
from pathlib import Path

from gradring.collectives import joining
from gradring.collectives.communicator import Communicator
from gradring.collectives.memberships import keep, note_joined
from gradring.core_arguments import require_secret
from gradring.errors import InvalidArgument, TimedOut
from gradring.launchers import our_launcher
from gradring.launchers.job_secret import HOW_TO_MAKE_ONE
from gradring.prometheus import endpoint
from gradring.settings import config
from gradring.settings.address import parse_address

_NEWCOMER = -1

# What the door of a rank says that leads nobody.
_LEADER = re.compile(r"leads this job now; newcomers come to (\S+)$")
_MOST_HOPS = 4  # In a row, from door to door; more only while the ranks find a new leader.
_PAUSE_SECONDS = 0.2  # After these.
# Where the job may move, as long at one door before it is asked once more where it is.
_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 1.0, 5.0


def join(
    rendezvous: str | None = None,
    *,
    secret: str | bytes | None = None,
    tls: str | None = None,
    timeout: float | None = None,
    interface: str | None = None,
    ports: str | None = None,
) -> Communicator:
    """Join a job that runs already, as a further rank, and return the communicator of all ranks.

    Waits until the ranks of the job call `Communicator.grow` together. Newcomers get the ranks
    behind theirs, in the order in which they came. Transport, timeouts and costs of links are the
    job's, whatever this process was told. It returns when `grow` does on the others, so what they
    call next is called here next. What the ranks have learned so far is theirs to tell: let rank 0
    broadcast it (docs/training.md).

    Args:
        rendezvous: ``HOST:PORT`` of the job: its `Communicator.meeting_point`. That is where its
            ranks met at first, as long as the rank 0 of then lives. At the door of another rank it
            hears where to go. ``None``: GRADRING_RENDEZVOUS.
        secret: The job's; ``None``: GRADRING_SECRET.
        tls: What is encrypted, as for `gradring.init`; the same as on the ranks of the job.
        timeout: Seconds to wait for the job to grow; ``None``: GRADRING_TIMEOUT, or 30, but as long
            as the job runs in a process that `gradring run --restart-ranks` has started again. Not
            that of later calls.
        interface: ``NAME`` or ``CIDR`` of the interface that other ranks should reach this one by.
        ports: ``FIRST-LAST``: the range that the port this rank listens at is taken from.

    Raises:
        InvalidArgument: There is no address or no secret; the job has transport ``shm`` on another
            host; its doors send to each other until the time is over.
        AuthError: The secrets differ, or only some ranks encrypt.
        ProtocolError: The job's build of Gradring and this one do not understand each other.
        TimedOut: Nobody answers there, or the job did not grow in time; says which.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> import gradring as gr
        >>> job = gr.init(rank=0, world_size=1, rendezvous="127.0.0.1:0", secret="s" * 32)
        >>> with ThreadPoolExecutor() as threads:  # In place of another process.
        ...     coming = threads.submit(gr.join, job.meeting_point, secret="s" * 32)
        ...     while job.world_size == 1:
        ...         job = job.grow()
        ...     with job, coming.result() as newcomer:
        ...         (newcomer.rank, newcomer.world_size)
        (1, 2)
    """
    address = os.environ.get("GRADRING_RENDEZVOUS") if rendezvous is None else rendezvous
    if not address:
        raise InvalidArgument(
            "join: where is the job? Give its Communicator.meeting_point as rendezvous=HOST:PORT, "
            "or set GRADRING_RENDEZVOUS"
        )
    parse_address(address, "GRADRING_RENDEZVOUS" if rendezvous is None else "rendezvous")
    if secret is None:
        secret = os.environ.get("GRADRING_SECRET")
    if secret is None:
        raise InvalidArgument(
            "join: GRADRING_SECRET is not set; it is the one that the ranks of the job were "
            f"started with:\n  {HOW_TO_MAKE_ONE}"
        )
    require_secret(secret, "join: secret")
    settings = config.Settings.from_environ(
        os.environ, tls=tls, timeout=timeout, interface=interface, ports=ports
    )
    if settings.metrics is not None:
        parse_address(settings.metrics, "GRADRING_METRICS", any_port=True)
        endpoint.require_client()
    is_led = rendezvous is None and our_launcher.is_led(os.environ)
    seconds = math.inf if is_led and timeout is None else settings.timeout
    place = joining.Place(_NEWCOMER, 1, address, secret)
    communicator = _come_in(place, settings, seconds, is_led=is_led)
    if settings.metrics is not None:  # Ranks that start with the job have had their ports by now.
        endpoint.serve_newcomer(settings.metrics, settings.ports)
    keep(communicator)
    given = our_launcher.role_given(os.environ)
    if address == given[0]:  # Whoever has said so.
        note_joined(communicator, given)
    return communicator


def _come_in(
    place: joining.Place, settings: config.Settings, seconds: float, *, is_led: bool
) -> Communicator:
    """Wait at the job's door, and where that or the launcher sends us, for so many seconds."""
    began = time.monotonic()
    warns_at = began + settings.timeout
    home = door = place.rendezvous
    hops, look, tries = 0, _FIRST_LOOK_SECONDS, 0
    while True:
        tries += 1
        now = time.monotonic()
        home = (our_launcher.heard_place() or home) if is_led else home
        door = door if hops else home
        left = began + seconds - now
        asked = left if not (is_led or hops) else min(left, look)
        try:
            there = dataclasses.replace(place, rendezvous=door)
            return joining.join(there, dataclasses.replace(settings, timeout=max(asked, 1e-3)))
        except TimedOut as error:
            if asked < left:
                hops, look = 0, min(2 * look, _LONGEST_LOOK_SECONDS)
                warns_at = _warn(warns_at, time.monotonic() - began, error)
            elif tries == 1:
                raise
            else:
                raise TimedOut(f"{error} ({seconds:g} s in all)") from None
        except InvalidArgument as error:
            leader = _LEADER.search(str(error))
            if leader is None or now - began >= seconds:
                raise
            door, hops = leader[1], hops + 1
            if hops > _MOST_HOPS:
                hops, warns_at = 0, _warn(warns_at, time.monotonic() - began, error)
                time.sleep(_PAUSE_SECONDS)


def _warn(at: float, seconds: float, error: Exception) -> float:
    """Say once, at that time, that this process still waits; returns when to say it."""
    if time.monotonic() < at:
        return at
    package = str(Path(__file__).parents[1])
    callers = enumerate(inspect.stack(0), 1)
    warnings.warn(
        f"waits to be let into the job for {seconds:.0f} s by now, and goes on: {error}",
        # The script's line, however deep in here that joins.
        stacklevel=next((up for up, each in callers if not each.filename.startswith(package)), 1),
    )
    return math.inf
