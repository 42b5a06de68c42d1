"""How each library's ranks are started on this machine, by the names of the command line."""

from __future__ import annotations

import os
from pathlib import Path

from gradring.bench import mpis
from gradring.bench.starts import HERE, Start, package_path, require_module, under_gradring_run
from gradring.commands.own_modules import module_command
from gradring.settings.config import absolute_path

_TORCH = "pip install torch==2.13.0"
# Intel MPI has collectives for one node, over shared memory whatever the fabric is.
_OFI_TCP = {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "I_MPI_COLL_INTRANODE": "pt2pt"}


def start_ours(
    ranks: int, transport: str | None, algorithm: str, socket: Path, device: str = "cpu"
) -> Start:
    """Return how to start gradring's own ranks."""
    return start_ranks(
        "gradring.bench.peers.ours", ranks, transport, (str(socket), algorithm, device)
    )


def start_ranks(
    module: str, ranks: int, transport: str | None, arguments: tuple[str, ...]
) -> Start:
    """Return how to start a module of ours as every rank.

    Raises:
        InvalidArgument: The working directory, in which they start, was removed.
    """
    chosen = ("--transport", transport) if transport is not None else ()
    program = module_command(module, *arguments)
    return Start(
        "gradring",
        (*under_gradring_run(ranks, *chosen), *program),
        absolute_path(Path()),
        package_path(),
    )


def start_peer(name: str, ranks: int, python: str, socket: Path, device: str = "cpu") -> Start:
    """Return how to start a peer's ranks; their arrays are on a device only where it is Gloo.

    Raises:
        Missing: Its launcher or its Python package is not here.
    """
    if name == "gloo":
        return _gloo(ranks, python, socket, device)
    return PEERS[name](ranks, python, socket)


def _gloo(ranks: int, python: str, socket: Path, device: str = "cpu") -> Start:
    require_module("gloo", python, "torch", _TORCH)
    store = socket.with_suffix(".store")
    # `gradring run` hands out the ranks; torch meets through the file.
    script = f'exec "$0" -m peers.gloo "$1" "$2" "$GRADRING_RANK" {ranks} {device}'
    program = ("sh", "-c", script, python, str(socket), str(store))
    environ = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    return Start(
        "gloo", (*under_gradring_run(ranks), *program), HERE, {**package_path(), **environ}
    )


PEERS: dict[str, mpis.Starter] = {
    "gloo": _gloo,
    "openmpi": mpis.open_mpi("openmpi"),
    "openmpi-tcp": mpis.open_mpi("openmpi-tcp", "--mca", "btl", "tcp,self", "--mca", "pml", "ob1"),
    "mpich": mpis.mpich("mpich"),
    "mpich-tcp": mpis.mpich(
        "mpich-tcp", MPIR_CVAR_NOLOCAL="1", MPIR_CVAR_CH4_NETMOD="ofi", FI_PROVIDER="tcp"
    ),
    "intelmpi": mpis.intel_mpi("intelmpi"),
    "intelmpi-tcp": mpis.intel_mpi("intelmpi-tcp", **_OFI_TCP),
    "oneccl": mpis.oneccl("oneccl"),
    "oneccl-tcp": mpis.oneccl("oneccl-tcp", CCL_ATL_SHM="0", **_OFI_TCP),
}
