"""The sockets that an agent opens for those who will inherit them.

Standard library only, as the agent.
"""

from __future__ import annotations

import errno
import os
import socket

from gradring.errors import InvalidArgument
from gradring.settings import port_range

_CANNOT_LISTEN = {
    errno.EADDRNOTAVAIL: "it is no address of this host",
    errno.EADDRINUSE: "the port is in use",
}


def open_listener(host: str, port: int, ports: str | None, *, is_for_ranks: bool) -> socket.socket:
    """Listen where the ranks are to meet, or for a parameter server.

    Args:
        host: An address; empty: all of this host's.
        port: 0: a free one.
        ports: What the launcher says that free ones are taken from, as GRADRING_PORTS; ``None``:
            what that variable of this host says.
        is_for_ranks: Whether an option names another place; the error says so.

    Raises:
        OSError: It cannot be done; says why.
    """
    try:
        if port == 0:
            return _at_free_port(host, ports or os.environ.get("GRADRING_PORTS"))
        return listen(host, port)
    except OSError as error:
        what = _CANNOT_LISTEN.get(error.errno or 0)
        if what is None or not is_for_ranks:
            raise
        where = f"at {host}" if host else "here"
        text = f"{where}, port {port}: {what}; --rendezvous names an address of the first host"
        raise OSError(f"{text}, and a port that is free there (0: any)") from error


def _at_free_port(host: str, ports: str | None) -> socket.socket:
    try:
        checked = port_range.checked(ports, "GRADRING_PORTS") if ports else None
        return port_range.listen_at_free_port(
            host or "this host", checked, lambda port: listen(host, port)
        )
    except InvalidArgument as error:
        raise OSError(str(error)) from error


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address of this host, or with an empty one at all.

    Raises:
        OSError: It cannot be done.
    """
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Resolved, or the link that `%` names would be left out.
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4]
        return socket.create_server(address, family=family, backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
        )
    return socket.create_server(("", port), backlog=1024)
