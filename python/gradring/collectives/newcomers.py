"""`join()`: into a job that runs already, when its ranks call `Communicator.grow`."""

from __future__ import annotations

import os

from gradring.collectives import joining
from gradring.collectives.communicator import Communicator, keep
from gradring.core_arguments import require_secret
from gradring.errors import InvalidArgument
from gradring.launchers.job_secret import HOW_TO_MAKE_ONE
from gradring.prometheus import endpoint
from gradring.settings import config
from gradring.settings.address import parse_address

_NEWCOMER = -1


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
            ranks met at first, as long as the rank 0 of then lives. ``None``: GRADRING_RENDEZVOUS.
        secret: The job's; ``None``: GRADRING_SECRET.
        tls: What is encrypted, as for `gradring.init`; the same as on the ranks of the job.
        timeout: Seconds to wait for the job to grow; ``None``: GRADRING_TIMEOUT, or 30. Not that of
            later calls.
        interface: ``NAME`` or ``CIDR`` of the interface that other ranks should reach this one by.
        ports: ``FIRST-LAST``: the range that the port this rank listens at is taken from.

    Raises:
        InvalidArgument: There is no address or no secret; another rank leads the job by now, and
            the message has its address; the job has transport ``shm`` on another host.
        AuthError: The secrets differ, or only some ranks encrypt.
        ProtocolError: The job's build of Gradring and this one do not understand each other.
        TimedOut: Nobody answers there, or the job did not grow in time; says which.
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
    place = joining.Place(_NEWCOMER, 1, address, secret)
    communicator = joining.join(place, settings)
    if settings.metrics is not None:  # Ranks that start with the job have had their ports by now.
        endpoint.serve_newcomer(settings.metrics, settings.ports)
    keep(communicator)
    return communicator
