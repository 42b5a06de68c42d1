"""host:port as people write it, IPv6 in brackets; and which hosts mean this machine only.

Used by all who take an address from a user. Nothing in here asks a name server.
"""

from __future__ import annotations

import ipaddress
import socket

from gradring.core_arguments import plain_text
from gradring.errors import InvalidArgument


def parse_address(text: str, source: str, *, any_port: bool = False) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``.

    Args:
        text: What was written.
        source: The variable or option it came from, for the message.
        any_port: Whether port 0 ("pick one") makes sense here.

    Raises:
        InvalidArgument: There is no host or no port, the port is not in range, an IPv6 host has
            no brackets, or the name is not UTF-8.
    """
    host, colon, port = plain_text(text, source).rpartition(":")
    if not colon or not host:
        raise InvalidArgument(f"{source}={text!r} is not host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgument(f"{source}={text!r}: IPv6 goes in brackets, [{host}]:{port}")
    return host, parse_port(port, source, any_port=any_port, within=text)


def parse_port(text: str, source: str, *, any_port: bool = False, within: str = "") -> int:
    """Return the port number.

    Args:
        text: What was written for the port.
        source: The variable or option it came from, for the message.
        any_port: Whether 0 ("pick one") makes sense here.
        within: The whole of what was written, if that was more.

    Raises:
        InvalidArgument: ``text`` is not a number from 1 (or 0, with ``any_port``) to 65535.
    """
    port = int(text) if text.isascii() and text.isdigit() else -1
    least = 0 if any_port else 1
    if not least <= port <= 65535:
        raise InvalidArgument(
            f"{source}={(within or text)!r}: a port is a number from {least} to 65535"
        )
    return port


def metrics_address(text: str, source: str) -> str:
    """Return host:port of where metrics are told; without a host it is this machine's loopback.

    Args:
        text: ``port``, ``host:port`` or ``[v6]:port``; port 0 picks one.
        source: The variable or option it came from, for the message.

    Raises:
        InvalidArgument: As for `parse_address`.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return format_address(own_loopback(), parse_port(text, source, any_port=True))
    return format_address(*parse_address(text, source, any_port=True))


def format_address(host: str, port: int) -> str:
    """Join host and port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_loopback() -> str:
    """Return the address by which processes of this machine meet: 127.0.0.1, or ::1 without it."""
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        try:
            with socket.socket(family) as probe:
                probe.bind((host, 0))
        except OSError:
            continue
        return host
    return "127.0.0.1"  # Who listens there says what is wrong.


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` can only mean this machine: localhost, 127.0.0.0/8 or ::1."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
