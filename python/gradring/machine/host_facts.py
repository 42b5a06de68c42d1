"""What this machine is and allows: facts for `gradring doctor`, read and never changed.

Each function asks the kernel or the Python installation one thing and says ``None`` where it has
no answer, so the doctor works on any Linux, in any container, with any part missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import ipaddress
import os
import platform
import resource
import socket
import struct
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Interface:
    """One address of one network interface, as ``192.168.1.5/24``."""

    name: str
    address: str

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address without its network."""
        return ipaddress.ip_interface(self.address).ip


class _IfAddrs(ctypes.Structure):
    # struct ifaddrs of <ifaddrs.h>, up to the last field used here.
    pass


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
]

_IFF_UP = 1


def interfaces() -> list[Interface]:
    """Return the addresses of all interfaces that are up, in the kernel's order."""
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        return []
    found: list[Interface] = []
    try:
        entry = head
        while bool(entry):
            item = entry.contents
            address = _ip_at(item.address)
            netmask = _ip_at(item.netmask)
            if item.flags & _IFF_UP and address is not None and netmask is not None:
                bits = int(ipaddress.ip_address(netmask)).bit_count()
                found.append(Interface(item.name.decode(), f"{address}/{bits}"))
            entry = item.next
    finally:
        libc.freeifaddrs(head)
    return found


def _ip_at(pointer: int | None) -> str | None:
    """Read a sockaddr that holds an internet address; other families have no text."""
    if not pointer:
        return None
    (family,) = struct.unpack("=H", ctypes.string_at(pointer, 2))
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 8, 16))
    return None


def chosen_interface(
    found: list[Interface], wanted: str | None, rendezvous: tuple[str, int] | None
) -> Interface | None:
    """Return the one whose address other ranks would be told.

    Args:
        found: From `interfaces`.
        wanted: A name or CIDR, or ``None`` to follow the route to the rendezvous.
        rendezvous: Host and port; ``None`` in a world of one, which stays on loopback.
    """
    if wanted is not None and "/" in wanted:
        network = ipaddress.ip_network(wanted, strict=False)
        return next((item for item in found if item.ip in network), None)
    if wanted is not None:
        return next((item for item in found if item.name == wanted), None)
    source = "127.0.0.1" if rendezvous is None else route_source(*rendezvous)
    return next((item for item in found if str(item.ip) == source), None)


def route_source(host: str, port: int) -> str | None:
    """Return our address on the route to ``host``; asks the routing table, sends nothing."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def why_unreachable(host: str, port: int, seconds: float) -> str | None:
    """Return why nobody answers at an address, or ``None`` where somebody does."""
    try:
        socket.create_connection((host, port), seconds).close()
    except (OSError, UnicodeError) as error:  # No name of a host is that long, or so spelt.
        return str(error)
    return None


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return how many CPUs the control group may use; ``None`` without a limit."""
    with contextlib.suppress(OSError, ValueError):  # cgroup v2
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):  # cgroup v1
        micros = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        period_micros = int((root / "cpu" / "cpu.cfs_period_us").read_text())
        return None if micros <= 0 else micros / period_micros
    return None


def cpus() -> dict[str, float | int | None]:
    """Return how many CPUs there are, how many we may run on, and how many are paid for."""
    return {
        "online": os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)),
        "quota": cpu_quota(),
    }


def cpus_of_parent() -> int:
    """Return how many CPUs the process that started this one may run on; 0 where nobody says.

    A launcher that gives each rank CPUs of its own has all of them itself.
    """
    with contextlib.suppress(OSError):
        return len(os.sched_getaffinity(os.getppid()))
    return 0


def setting(name: str) -> str | None:
    """Return a kernel setting, such as ``net.ipv4.tcp_congestion_control``."""
    with contextlib.suppress(OSError):
        return (Path("/proc/sys") / name.replace(".", "/")).read_text().strip()
    return None


def has_memfd() -> bool:
    """Tell whether shared memory without /dev/shm can be made here."""
    try:
        os.close(os.memfd_create("gradring-doctor"))
    except OSError:
        return False
    return True


def ptrace_scope(root: Path = Path("/proc/sys")) -> int:
    """Return who may trace whom: 0, one's own processes; more: fewer (the kernel's Yama)."""
    try:
        return int((root / "kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0


def memory_limit(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that the control group may use; ``None`` without a limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limit = int((root / name).read_text())
            return None if limit >= 1 << 60 else limit
    return None


def available_memory() -> int | None:
    """Return the bytes that can be taken without swapping."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def open_files() -> tuple[int, int]:
    """Return the soft and the hard limit on open files."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def can_load(*names: str) -> str | None:
    """Return the first of the shared libraries that loads."""
    for name in names:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return name
    return None


def own_version() -> str:
    """Return gradring's version as installed."""
    return package_version("gradring") or "unknown (not installed; run from a source tree?)"


def package_version(name: str) -> str | None:
    """Return the version of an installed package without importing it."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def has_package(name: str) -> bool:
    """Tell whether a package could be imported."""
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(name) is not None
    return False


def kernel() -> str:
    """Return system, kernel version and processor."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"
