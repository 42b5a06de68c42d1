"""How launcher and agents number the processes of a job: ranks as they are, servers from a base.

Pure, standard library only: agents import it too.
"""

from __future__ import annotations

FIRST_SERVER = 1 << 31


def server_number(index: int) -> int:
    """Return the number of a parameter server."""
    return FIRST_SERVER + index


def is_server(number: int) -> bool:
    """Tell whether the process is a server; else it is a rank."""
    return number >= FIRST_SERVER


def server_index(number: int) -> int:
    """Return which server the process is, from 0."""
    return number - FIRST_SERVER


def label(number: int) -> str:
    """Return what stands before its lines: ``3`` for a rank, ``s0`` for a server."""
    return f"s{server_index(number)}" if is_server(number) else str(number)


def name(number: int) -> str:
    """Return "rank 3" or "server 0"."""
    return f"server {server_index(number)}" if is_server(number) else f"rank {number}"
