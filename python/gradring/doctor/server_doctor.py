"""Which parameter servers answer, for `gradring doctor`.

With the job's secret each is asked as a client asks it, so that what answers is known to be one;
without, it can only be told that something listens.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gradring.core_arguments import secret_bytes
from gradring.errors import Error, Mismatch
from gradring.machine import host_facts
from gradring.settings.address import parse_address

# A server that does not answer within this is told as a problem.
_SECONDS = 2.0

_FIRST_STRANGER = 1 << 31  # Numbers from here on are no worker's.
_ASKED_AT_ONCE = 32


def ask(
    addresses: Sequence[str], secret: str | None, tls: str, problems: list[str]
) -> dict[str, str]:
    """Ask all servers.

    Args:
        addresses: In the order of the servers' numbers.
        secret: Theirs, where it is known.
        tls: What to encrypt, as for `gradring.init`.
        problems: Takes what is wrong.

    Returns:
        What each does, by number and address.
    """

    def why_not(address: str) -> str | None:
        return _why_unserved([address], secret, tls, is_alone=len(addresses) == 1)

    def look(address: str) -> str | None:
        return host_facts.why_unreachable(*parse_address(address, "server"), _SECONDS)

    with ThreadPoolExecutor(min(_ASKED_AT_ONCE, len(addresses))) as pool:
        reasons = list(pool.map(why_not if secret else look, addresses))
    problems += [
        f"parameter server {index} at {address} does not answer: {reason}"
        for index, (address, reason) in enumerate(zip(addresses, reasons, strict=True))
        if reason is not None
    ]
    if secret and len(addresses) > 1 and not any(reasons):
        together = _why_unserved(addresses, secret, tls, is_alone=True)
        problems += [together] if together else []
    good = "answers" if secret else "something listens"
    return {
        f"{index} {address}": good if reason is None else reason
        for index, (address, reason) in enumerate(zip(addresses, reasons, strict=True))
    }


def _why_unserved(
    addresses: Sequence[str], secret: str | None, tls: str, *, is_alone: bool
) -> str | None:
    """Connect as a client does; one server of several says by refusing that it is one."""
    from gradring import _core

    try:
        _core.PsClient(
            servers=list(addresses),
            secret=secret_bytes(secret or ""),
            tls=tls,
            client=_FIRST_STRANGER + secrets.randbelow(_FIRST_STRANGER),
            transport="tcp",
            timeout_ms=round(_SECONDS * 1000),
        ).close()
    except Mismatch as error:
        return str(error) if is_alone else None
    except Error as error:
        return str(error)
    return None
