"""Where the parameter servers are: GRADRING_SERVERS, or the argument of `connect()`.

Pure. Used by `connect()` and `gradring doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradring.errors import InvalidArgument
from gradring.settings.address import format_address, parse_address

VARIABLE = "GRADRING_SERVERS"


def find(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the servers' addresses in the order of their numbers; ``None`` where none are set.

    Raises:
        InvalidArgument: The variable is not ``host:port,host:port,...``.
    """
    text = environ.get(VARIABLE)
    return parse(text, VARIABLE) if text else None


def parse(servers: str | Sequence[str], source: str) -> tuple[str, ...]:
    """Check addresses.

    Args:
        servers: ``host:port,host:port``, or one string for each server.
        source: The variable or argument they came from, for messages.

    Raises:
        InvalidArgument: There is none, one is not host:port, or one is there twice.
    """
    given: Any = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(given, Sequence) or isinstance(given, (bytes, bytearray)):
        raise InvalidArgument(
            f"{source}: host:port,host:port or a list of them, not {type(given).__name__}"
        )
    texts: list[Any] = list(given)
    found: list[str] = []
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidArgument(
                f"{source}: the address of server {index} is a {type(text).__name__}, not text"
            )
        if not text.strip():
            raise InvalidArgument(
                f"{source}: the address of server {index} of {len(texts)} is empty; "
                "say host:port for each, with commas between"
            )
        address = format_address(*parse_address(text.strip(), f"{source} (server {index})"))
        if address in found:
            raise InvalidArgument(
                f"{source}: servers {found.index(address)} and {index} are both {address}"
            )
        found.append(address)
    if not found:
        raise InvalidArgument(f"{source}: no server in it")
    return tuple(found)
