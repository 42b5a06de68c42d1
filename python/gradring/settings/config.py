"""Every environment variable of gradring, in one place, and the settings that are read from them.

`init()` turns the variables into `Settings` once; explicit arguments win. `gradring doctor` prints
the list, the launcher fills it in for its ranks, and a test holds docs/configuration.md to it.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradring.core_arguments import is_plain_text, plain_text
from gradring.errors import InvalidArgument
from gradring.settings import port_range
from gradring.settings.address import metrics_address
from gradring.timeouts import LONGEST, is_timeout

TRANSPORTS = ("auto", "shm", "tcp")
ENCRYPTIONS = ("auto", "on", "off")

DEFAULT_TIMEOUT = 30.0
DEFAULT_HEARTBEAT_TIMEOUT = 10.0
DEFAULT_RECORD_OPERATIONS = 1024
MOST_RECORD_OPERATIONS = 1 << 20
MOST_LINK_MBIT = 10**8
MOST_STREAMS = 32  # As limits::kStreams of the core.

# Name -> what it says. A variable that is not in here does not exist.
VARIABLES: Mapping[str, str] = {
    "GRADRING_RANK": "this process's rank, from 0",
    "GRADRING_WORLD_SIZE": "number of ranks in the job",
    "GRADRING_LOCAL_RANK": "this process's rank among those of its host",
    "GRADRING_LOCAL_WORLD_SIZE": "number of ranks on this host",
    "GRADRING_RENDEZVOUS": "host:port where rank 0 listens; IPv6 in brackets",
    "GRADRING_LISTEN_FD": "rank 0: an inherited socket that already listens there",
    "GRADRING_NEWCOMER": "1: this process comes into a job that runs already",
    "GRADRING_LAUNCHER": "a socket to `gradring run --restart-ranks`, which sets it",
    "GRADRING_SECRET": "the job's secret, the same on every rank; never printed",
    "GRADRING_SERVERS": "host:port of every parameter server, with commas between",
    "GRADRING_TRANSPORT": "auto, shm or tcp",
    "GRADRING_TLS": "auto (encrypts between hosts), on (all TCP) or off; the same on all hosts",
    "GRADRING_TIMEOUT": "seconds without progress after which an operation fails",
    "GRADRING_HEARTBEAT_TIMEOUT": "seconds of silence after which a rank counts as lost",
    "GRADRING_INTERFACE": "network interface to use: its name, or a CIDR its address lies in",
    "GRADRING_PORTS": "FIRST-LAST: the range that free ports to listen at are taken from",
    "GRADRING_RECORD": "folder for records of failures; {job} stands for the job's id",
    "GRADRING_RECORD_OPS": "operations that a communicator's record keeps; 0 keeps none",
    "GRADRING_TRACE": "folder for a trace of every rank; none is made without it",
    "GRADRING_PROFILE": "rank 0: file of what links cost, made by `gradring tune`",
    "GRADRING_METRICS": "[host:]port of rank 0's metrics for Prometheus; rank r has port + r",
    "GRADRING_LINK_MBIT": "what this host may send, in Mbit/s; set on all hosts, spares slow ones",
    "GRADRING_STREAMS": "rank 0: TCP connections that each link between two hosts is made of",
    "GRADRING_GPU_PLUGIN": "file of the GPU plugin, instead of the one beside the module",
    "GRADRING_NCCL_LIB": "file of NCCL's library, instead of the first one found",
    "GRADRING_GPU_STREAM_WAITS": "1: a GPU's streams wait for the network, and the host does not",
    "GRADRING_DATA": "folder of the examples' data sets",
}


@dataclass(frozen=True)
class Settings:
    """How to talk, as opposed to who we are (that is `gradring.launchers.roles.Role`).

    Attributes:
        transport: ``auto``, ``shm`` or ``tcp``.
        tls: ``auto`` (what goes between hosts is encrypted), ``on`` (all TCP) or ``off``.
        timeout: Seconds without progress after which an operation fails; also of joining.
        heartbeat_timeout: Seconds of silence after which a rank counts as lost.
        interface: Interface name or CIDR; ``None`` follows the route to the rendezvous.
        ports: ``FIRST-LAST``, what free ports are taken from; ``None``: any.
        record: Folder for the record that a failure leaves; ``{job}`` stands for the job's id.
        record_operations: How many operations a communicator's record keeps.
        trace: Folder for traces; ``None`` makes none.
        profile: File of what links cost, read by rank 0; ``None`` leaves the planner its defaults.
        metrics: ``host:port`` where rank 0 answers Prometheus; ``None``: nobody does.
        link_mbit: What this host's link may send, in Mbit/s; 0: not known.
        streams: Connections of a link between hosts, told by rank 0; 0: as the profile says, or 1.
    """

    transport: str = "auto"
    tls: str = "auto"
    timeout: float = DEFAULT_TIMEOUT
    heartbeat_timeout: float = DEFAULT_HEARTBEAT_TIMEOUT
    interface: str | None = None
    ports: str | None = None
    record: str = "/tmp/gradring-{job}"
    record_operations: int = DEFAULT_RECORD_OPERATIONS
    trace: str | None = None
    profile: str | None = None
    metrics: str | None = None
    link_mbit: int = 0
    streams: int = 0

    @classmethod
    def from_environ(  # noqa: PLR0913 - every argument has a variable; none belongs together
        cls,
        environ: Mapping[str, str],
        *,
        transport: str | None = None,
        tls: str | None = None,
        timeout: float | None = None,
        heartbeat_timeout: float | None = None,
        interface: str | None = None,
        ports: str | None = None,
        metrics: str | None = None,
        profile: str | os.PathLike[str] | None = None,
    ) -> Settings:
        """Read the variables; an argument that is not ``None`` wins over its variable.

        Raises:
            InvalidArgument: A value is not one of the choices, not a number or not positive, or
                text that is not UTF-8; the message names the argument or variable.
        """
        transport_from, transport_text = _choose("transport", transport, environ)
        tls_from, tls_text = _choose("tls", tls, environ)
        interface_from, interface_text = _choose("interface", interface, environ)
        ports_from, ports_text = _choose("ports", ports, environ)
        metrics_from, metrics_text = _choose("metrics", metrics, environ)
        _, profile_text = _choose(
            "profile", None if profile is None else os.fspath(profile), environ
        )
        return cls(
            transport=_one_of(TRANSPORTS, transport_from, transport_text or "auto"),
            tls=_one_of(ENCRYPTIONS, tls_from, tls_text or "auto"),
            timeout=_seconds("timeout", timeout, environ, DEFAULT_TIMEOUT),
            heartbeat_timeout=_seconds(
                "heartbeat_timeout", heartbeat_timeout, environ, DEFAULT_HEARTBEAT_TIMEOUT
            ),
            interface=_interface(interface_from, interface_text) if interface_text else None,
            ports=port_range.checked(ports_text, ports_from) if ports_text else None,
            record=_record(environ.get("GRADRING_RECORD") or default_record_folder(environ)),
            record_operations=_count(
                "GRADRING_RECORD_OPS", environ, DEFAULT_RECORD_OPERATIONS, MOST_RECORD_OPERATIONS
            ),
            trace=_absolute(environ["GRADRING_TRACE"]) if environ.get("GRADRING_TRACE") else None,
            profile=_absolute(profile_text) if profile_text else None,
            metrics=metrics_address(metrics_text, metrics_from) if metrics_text else None,
            link_mbit=_count("GRADRING_LINK_MBIT", environ, 0, MOST_LINK_MBIT),
            streams=_count("GRADRING_STREAMS", environ, 0, MOST_STREAMS),
        )


def gpu_streams_wait(environ: Mapping[str, str]) -> bool:
    """Tell whether streams may wait for what the network brings (docs/gpu.md).

    Raises:
        InvalidArgument: The variable is neither 0 nor 1.
    """
    text = environ.get("GRADRING_GPU_STREAM_WAITS") or "0"
    if text not in ("0", "1"):
        raise InvalidArgument(f"GRADRING_GPU_STREAM_WAITS='{text}' is neither 0 nor 1")
    return text == "1"


def timeout_in_force(environ: Mapping[str, str], asked: float | None = None) -> float:
    """Return the seconds without progress that fail an operation: asked for, the variable, or 30.

    Raises:
        InvalidArgument: That is no positive number; names the argument or variable.
    """
    return _seconds("timeout", asked, environ, DEFAULT_TIMEOUT)


def default_record_folder(environ: Mapping[str, str]) -> str:
    """Return where records go unless GRADRING_RECORD says otherwise."""
    folder = environ.get("TMPDIR") or "/tmp"
    # The message of a failure names it, so it has to be text.
    return f"{folder if is_plain_text(folder) else '/tmp'}/gradring-{{job}}"


def variables_in_force(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the GRADRING_* variables that are set; of the secret, however misspelt, its length."""
    shown = {name: value for name, value in environ.items() if name.startswith("GRADRING_")}
    meant = misspelled_variables(environ)
    for name, value in shown.items():
        if "SECRET" in name or meant.get(name) == "GRADRING_SECRET":
            shown[name] = f"set, {len(value)} characters"
    return dict(sorted(shown.items()))


def _choose(name: str, argument: str | None, environ: Mapping[str, str]) -> tuple[str, str | None]:
    if argument is not None:
        return name, argument
    variable = f"GRADRING_{name.upper()}"
    return variable, environ.get(variable)


def _one_of(choices: tuple[str, ...], source: str, text: str) -> str:
    if text not in choices:
        raise InvalidArgument(f"{source}={text!r} is not one of {', '.join(choices)}")
    return text


def _seconds(
    name: str, argument: float | None, environ: Mapping[str, str], default: float
) -> float:
    source, text = _choose(name, None if argument is None else str(argument), environ)
    if text is None or text == "":
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not is_timeout(seconds):
        raise InvalidArgument(
            f"{source}={text!r} is not a positive number of seconds, at most {LONGEST:g}"
        )
    return seconds


def _count(name: str, environ: Mapping[str, str], default: int, most: int) -> int:
    text = environ.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise InvalidArgument(f"{name}={text!r} is not a number from 0 to {most}")
    return int(text)


def _absolute(text: str) -> str:
    # What the script does to its working directory must not move it.
    return str(absolute_path(Path(text)))


def absolute_program(name: str) -> str:
    """Return a program's name as it means the same from any folder; one without a slash stays.

    Raises:
        InvalidArgument: The working directory was removed.
    """
    return str(absolute_path(Path(name))) if os.sep in name else name


def absolute_path(path: Path) -> Path:
    """Return where a path leads from the working directory.

    Raises:
        InvalidArgument: The working directory was removed.
    """
    try:
        return path.absolute()
    except OSError as error:
        raise InvalidArgument(
            f"{path}: there is no working directory any more ({error.strerror}); go to another "
            "one, or write the path from the root on"
        ) from None


def folder(text: str) -> Path:
    """Return the folder that an option names.

    Raises:
        InvalidArgument: It is empty, as of a variable that is not set: that is not the working
            directory.
    """
    if not text:
        raise InvalidArgument("the name of a folder is empty")
    return Path(text)


def _record(text: str) -> str:
    return plain_text(_absolute(text), "GRADRING_RECORD")


def _interface(source: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(f"{source} is a {type(text).__name__}, not the name of one or a CIDR")
    # A name cannot hold a slash, so one that does must be a network.
    if "/" not in plain_text(text, source):
        return text
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError as error:
        raise InvalidArgument(f"{source}={text!r} is no network: {error}") from None


def misspelled_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the names that are not ours but nearly so, each with the one that was likely meant."""
    found: dict[str, str] = {}
    for name in sorted(environ):
        if name.startswith("GRADRING_") and name not in VARIABLES:
            close = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85)
            if close:
                found[name] = close[0]
    return found
