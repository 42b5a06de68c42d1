"""The agent that a host had before for the same job: one that was cut off, and may still run.

The launcher starts another agent where it has lost one. Whether that one lives nobody can tell it:
its ranks might have the cores, ports and GPUs that their successors are to get. So agents of jobs
whose ranks come again mark their place by an abstract Unix socket, which goes with its process; the
next one finds it there, and ends it. Standard library only, as the agent.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

from gradring.launch import processes

_CREDENTIALS = struct.Struct("3i")  # Process, user, group.


def take_place(mark: str) -> socket.socket:
    """End the agent that has this mark, with all below it, and have the mark instead.

    Args:
        mark: Names job and host, and nothing else ever. Others on this host may read it.

    Returns:
        What marks our place until it is closed, or we end.

    Raises:
        OSError: The one before is not ours, or something of it would not die.
    """
    address = b"\0gradring-agent-" + mark.encode()
    until = time.monotonic() + processes.UNKILLABLE_SECONDS
    taken = socket.socket(socket.AF_UNIX)
    while True:
        try:
            taken.bind(address)
            taken.listen()
            return taken
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                taken.close()
                raise
        try:
            _end_holder(address)
        except OSError:
            taken.close()
            raise


def _end_holder(address: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(address)
        except ConnectionRefusedError:  # It has just ended.
            return
        credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, user, _ = _CREDENTIALS.unpack(credentials)
        if user != os.geteuid() or pid == 0:
            raise OSError(f"what ran there before for this job is not ours to end (user {user})")
        if left := processes.end_tree(pid):
            raise OSError(f"processes {left} of before would not die")
