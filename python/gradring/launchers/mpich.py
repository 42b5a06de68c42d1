"""MPICH's mpiexec tells its ranks no name for the job; this finds one in /proc.

All ranks on a host descend from one Hydra proxy, also when a shell script stands between, so the
proxy's process id and start time name the job on that host. Open MPI and Intel MPI set a variable
and do not come here.
"""

from __future__ import annotations

from pathlib import Path

_PROXIES = ("hydra_pmi_proxy", "hydra_bstrap_proxy")

# /proc shows at most this much of a program's name.
_COMM_CHARACTERS = 15


def launcher_identity(proc: Path = Path("/proc")) -> str | None:
    """Return a text that all ranks of one mpiexec on this host find; ``None`` without one."""
    names = {proxy[:_COMM_CHARACTERS] for proxy in _PROXIES}
    pid = "self"
    while True:
        try:
            # The kernel cuts a name after 15 bytes, which may be in the middle of a letter.
            stat = (proc / pid / "stat").read_text(errors="replace")
        except OSError:
            return None
        # The name is in parentheses and may hold anything, so look for the last one.
        head, _, tail = stat.rpartition(")")
        fields = tail.split()
        if head.partition("(")[2] in names:
            return f"hydra {head.partition(' ')[0]} {fields[19]}"
        pid = fields[1]
        if pid == "0":
            return None
