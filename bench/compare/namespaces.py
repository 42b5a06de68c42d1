"""Network namespaces: one with its own congestion control, or hosts behind a slow switch (root).

Nothing is changed outside of them, and they are deleted at the end, whatever happens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compare.collectives import Place
from compare.far import Way
from gradring.bench.starts import Start
from gradring.errors import InvalidArgument

NETWORK = "10.77.0"
_CONTROL = "net.ipv4.tcp_congestion_control"
_FAR_MTU = "9000"  # Few packets: one thread carries them all.


def complaint() -> str:
    """Return why namespaces cannot be made here; empty if they can, as one was to see."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} here (apt install iproute2)"
    try:
        _run("ip", "netns", "add", f"gradring-{os.getpid()}-try")
    except InvalidArgument as error:
        return f"network namespaces cannot be made here, root or not: {error}"
    _delete(f"gradring-{os.getpid()}-try")
    return ""


@contextlib.contextmanager
def with_congestion(control: str) -> Iterator[Place]:
    """Make a namespace whose sockets use this congestion control unless they ask for another.

    Raises:
        InvalidArgument: The kernel does not have it.
    """
    name = f"gradring-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
        # Bytes to an address of one's own go over lo; but Open MPI wants one that is no loopback.
        _run("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "port")
        _run("ip", "-n", name, "address", "add", f"{NETWORK}.1/24", "dev", "eth0")
        for end in ("eth0", "port"):
            _run("ip", "-n", name, "link", "set", end, "up")
        _run("ip", "netns", "exec", name, "sysctl", "-qw", f"{_CONTROL}={control}")

        def place(start: Start) -> Start:
            return dataclasses.replace(start, argv=("ip", "netns", "exec", name, *start.argv))

        yield place
    finally:
        _delete(name)


@dataclass(frozen=True)
class Hosts:
    """Hosts in a row; host i has the address NETWORK.(i + 1).

    Attributes:
        prefix: Of the namespaces' names; host i is prefix-i.
        mbit: What each may send a second, in order.
    """

    prefix: str
    mbit: Sequence[float]

    def addresses(self) -> list[str]:
        """All hosts' addresses."""
        return [f"{NETWORK}.{number + 1}" for number in range(len(self.mbit))]

    def inside(self, number: int) -> tuple[str, ...]:
        """What a command is preceded by to run on a host, which has a name of its own."""
        enter = ("ip", "netns", "exec", f"{self.prefix}-{number}")
        rename = f'hostname {self.prefix}-{number}; exec "$@"'
        return (*enter, "unshare", "--uts", "sh", "-c", rename, "sh")


@contextlib.contextmanager
def hosts(
    mbit: Sequence[float], congestion: str = "", delay_seconds: float = 0.0
) -> Iterator[Hosts]:
    """Make hosts behind a switch; a token bucket shapes what each sends.

    Args:
        mbit: What each may send a second, in order.
        congestion: Control that their sockets start with; empty: the system's.
        delay_seconds: From host to host; 0: as little as a switch takes.

    Raises:
        InvalidArgument: This machine cannot make them.
    """
    made = Hosts(f"gradring-{os.getpid()}", mbit)
    if delay_seconds > 0:
        with _far_hosts(made, congestion, delay_seconds):
            yield made
        return
    switch = f"{made.prefix}-switch"
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "bridge", "up")
        for number, rate in enumerate(mbit):
            _add_host(made, number, rate, congestion)
        yield made
    finally:
        for name in (switch, *(f"{made.prefix}-{number}" for number in range(len(mbit)))):
            _delete(name)


@contextlib.contextmanager
def _far_hosts(made: Hosts, congestion: str, delay_seconds: float) -> Iterator[None]:
    devices = [f"gr{os.getpid()}-{number}" for number in range(len(made.mbit))]
    try:
        way = Way(devices, delay_seconds)
    except OSError as error:
        raise InvalidArgument(f"a way that takes time needs /dev/net/tun: {error}") from None
    try:
        for number, rate in enumerate(made.mbit):
            host = f"{made.prefix}-{number}"
            _run("ip", "netns", "add", host)
            _run("ip", "link", "set", devices[number], "netns", host, "name", "eth0")
            _run("ip", "-n", host, "link", "set", "eth0", "mtu", _FAR_MTU, "txqueuelen", "10000")
            _bring_up(made, number, congestion)
            _shape(host, rate, 0.02 + 2 * delay_seconds)
        yield
    finally:
        way.close()
        for number in range(len(made.mbit)):
            _delete(f"{made.prefix}-{number}")


def _add_host(made: Hosts, number: int, rate: float, congestion: str) -> None:
    host, switch, port = f"{made.prefix}-{number}", f"{made.prefix}-switch", f"port{number}"
    _run("ip", "netns", "add", host)
    _run("ip", "link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", port,
         "netns", switch)  # fmt: skip
    _run("ip", "-n", switch, "link", "set", port, "master", "bridge")
    _run("ip", "-n", switch, "link", "set", port, "up")
    _bring_up(made, number, congestion)
    _shape(host, rate, 0.02)


def _bring_up(made: Hosts, number: int, congestion: str) -> None:
    host = f"{made.prefix}-{number}"
    _run("ip", "-n", host, "address", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
    _run("ip", "-n", host, "link", "set", "lo", "up")
    _run("ip", "-n", host, "link", "set", "eth0", "up")
    if congestion:
        _run("ip", "netns", "exec", host, "sysctl", "-qw", f"{_CONTROL}={congestion}")


def _shape(host: str, mbit: float, latency_seconds: float) -> None:
    _run("tc", "-n", host, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{mbit:g}mbit",
         "burst", "256k", "latency", f"{round(latency_seconds * 1e3)}ms")  # fmt: skip


def _run(*command: str) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        raise InvalidArgument(f"{' '.join(command)} failed: {ended.stderr.strip()}")


def _delete(name: str) -> None:
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
