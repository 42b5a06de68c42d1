"""How a rank hears commands: JSON lines over the bench's Unix socket, whose path it is given.

The bench goes on when every rank has answered; its end of the socket closing is the end.
"""

from __future__ import annotations

import json
import socket

from .timing import Rank


def serve(path: str, rank: int, program: Rank) -> None:
    """Carry out commands until there are no more."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        _send(connection, {"rank": rank})
        with connection.makefile("rb") as commands:
            for line in commands:
                _send(connection, _answer(program, line))


def _answer(program: Rank, line: bytes) -> dict[str, object]:
    try:
        return program.obey(json.loads(line))
    except Exception as error:  # noqa: BLE001 - whatever a library raises is the bench's to tell
        return {"error": f"{type(error).__name__}: {error}"}


def _send(connection: socket.socket, message: dict[str, object]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")
