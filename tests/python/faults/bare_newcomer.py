"""A newcomer by hand: it proves itself and waits in a job's lobby, and then does what a test says.

What it says and hears is in docs/wire.md.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from dataclasses import dataclass

from gradring import _core
from waiting import readable

_NEWCOMER = 7
_CONTROL = 0
_JOIN, _REFUSED, _INVITATION, _GROWN = 0, 2, 12, 13
_PATIENCE = 60.0


@dataclass(frozen=True)
class Invitation:
    """What a newcomer is told.

    Attributes:
        rank: Its own in the larger world.
        world_size: Number of ranks there.
        port: Where all meet.
    """

    rank: int
    world_size: int
    port: int


class BareNewcomer:
    """One that stands at a job's door from when it is made."""

    def __init__(self, meeting_point: str, secret: str) -> None:
        self._secret = secret.encode()
        self._host = meeting_point.rpartition(":")[0]
        self.socket = self._knock(meeting_point, _NEWCOMER, -1)

    def invitation(self) -> Invitation:
        """Wait until it is invited."""
        kind, body = self._hear()
        assert kind == _INVITATION, (kind, body)
        return Invitation(*struct.unpack_from("<iII", body))

    def is_invited_again(self) -> bool:
        """Wait for the end of a meeting that did not come about: the word, or the refusal."""
        kind, _ = self._hear()
        assert kind in (_REFUSED, _GROWN), kind
        return kind == _GROWN

    def come_and_go(self, invitation: Invitation) -> None:
        """Join the meeting and leave it, before all are there."""
        connection = self._knock(f"{self._host}:{invitation.port}", _CONTROL, invitation.rank)
        member = struct.pack("<i", invitation.rank) + _text("127.0.0.1:1") + _text("") + _text("h")
        body = (
            struct.pack("<BI", _JOIN, invitation.world_size) + member + struct.pack("<IIB", 0, 0, 0)
        )
        # With the end in one segment: who takes the one may look for the other at once.
        connection.sendall(struct.pack("<I", len(body)) + body, socket.MSG_MORE)
        connection.close()

    def is_told_anything(self, seconds: float) -> bool:
        """Tell whether anything comes within that time."""
        return bool(readable(self.socket, seconds=seconds))

    def close(self) -> None:
        """Go away."""
        self.socket.close()

    def _knock(self, address: str, purpose: int, rank: int) -> socket.socket:
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)), _PATIENCE)
        nonce = os.urandom(32)
        connection.sendall(b"GRAD" + bytes([_core.wire_version, 0, 1, 0]) + nonce)
        theirs = connection.recv(64, socket.MSG_WAITALL)[:32]
        intro = struct.pack("<BBxxii52x", purpose, 0, rank, 0)
        proof = hmac.digest(self._secret, b"client" + nonce + theirs + intro, hashlib.sha256)
        connection.sendall(intro + proof)
        assert len(connection.recv(32, socket.MSG_WAITALL)) == 32
        return connection

    def _hear(self) -> tuple[int, bytes]:
        (length,) = struct.unpack("<I", self.socket.recv(4, socket.MSG_WAITALL))
        frame = self.socket.recv(length, socket.MSG_WAITALL)
        return frame[0], frame[1:]


def invite_at_the_door(listener: socket.socket, secret: str, invitation: Invitation) -> None:
    """Be whoever leads a job: take in the newcomer that comes to a listener, and invite it.

    It then loses its job, whose leader has gone.
    """
    guest, _ = listener.accept()
    with guest:
        theirs = guest.recv(40, socket.MSG_WAITALL)[8:]
        nonce = os.urandom(32)
        proof = hmac.digest(secret.encode(), b"server" + theirs + nonce + bytes(64), hashlib.sha256)
        guest.sendall(nonce + proof)
        intro = guest.recv(96, socket.MSG_WAITALL)[:64]
        guest.sendall(hmac.digest(secret.encode(), b"accept" + theirs + nonce + intro, "sha256"))
        body = struct.pack(
            "<BiIIB", _INVITATION, invitation.rank, invitation.world_size, invitation.port, 0
        )
        body += _text("") + struct.pack("<QQQ", 20_000, 20_000, 5_000)
        guest.sendall(struct.pack("<I", len(body)) + body)


def _text(text: str) -> bytes:
    return struct.pack("<I", len(text)) + text.encode()
