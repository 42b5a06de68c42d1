"""A way that takes time: packets from one host's device to another's, each held for a while.

The kernel's own (netem) is not in every kernel. One thread reads what hosts send, from TUN devices,
and writes it to the host that it is for when its time has come.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence

_SET_DEVICE = 0x400454CA  # TUNSETIFF
_NO_HEADER, _TUN = 0x1000, 0x0001  # IFF_NO_PI, IFF_TUN
_PACKET_BYTES = 65536
_AT_ONCE = 64  # Packets of a host before the next one is looked at.
_LOOK_SECONDS = 0.1  # For the end.


class Way:
    """Joins hosts by devices; the last byte of an IPv4 address says which host it is, from 1."""

    def __init__(self, names: Sequence[str], seconds: float) -> None:
        """Make a device of each name, here, for the caller to move.

        Args:
            names: Of the devices, in the order of hosts.
            seconds: That a packet is under way.

        Raises:
            OSError: There is no /dev/net/tun, or nothing may be made with it.
        """
        self._seconds = seconds
        self._held: deque[tuple[float, bytes]] = deque()
        self._ends = threading.Event()
        self._devices: list[int] = []
        self._thread = threading.Thread(target=self._carry, daemon=True)
        try:
            for name in names:
                device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self._devices.append(device)
                fcntl.ioctl(
                    device, _SET_DEVICE, struct.pack("16sH", name.encode(), _TUN | _NO_HEADER)
                )
        except BaseException:
            self._close()
            raise
        self._thread.start()

    def close(self) -> None:
        """Stop carrying; the devices are gone after it."""
        self._ends.set()
        self._thread.join()
        self._close()

    def _close(self) -> None:
        for device in self._devices:
            os.close(device)

    def _carry(self) -> None:
        while not self._ends.is_set():
            wait = _LOOK_SECONDS
            if self._held:
                wait = min(wait, max(0.0, self._held[0][0] - time.monotonic()))
            # select() alone takes a wait of less than 1 ms; a bench has few descriptors.
            for device in select.select(self._devices, [], [], wait)[0]:  # noqa: TID251
                self._take(device)
            while self._held and self._held[0][0] <= time.monotonic():
                self._deliver(self._held.popleft()[1])

    def _take(self, device: int) -> None:
        due = time.monotonic() + self._seconds
        with contextlib.suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                self._held.append((due, os.read(device, _PACKET_BYTES)))

    def _deliver(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4:  # Hosts ask for routers in IPv6; there are none.
            return
        host = packet[19] - 1
        if host < len(self._devices):
            with contextlib.suppress(OSError):  # A device that is not up yet, or full: it is lost.
                os.write(self._devices[host], packet)
