"""`gradring doctor`: what gradring finds on this machine, and what should be changed.

One `Report`, printed as text or as JSON. It never fails because something is missing: that is what
it is asked to tell. The secret is shown as its length only.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

from gradring.doctor import server_doctor
from gradring.errors import InvalidArgument
from gradring.launchers.job_secret import HOW_TO_MAKE_ONE, needs_secret
from gradring.launchers.known import OWN
from gradring.launchers.our_launcher import is_newcomer
from gradring.launchers.roles import Role, discover
from gradring.machine import host_facts
from gradring.machine.build import build_info, gpu_facts
from gradring.settings import config, server_addresses
from gradring.settings.address import is_loopback

Report = dict[str, Any]

# A rank holds a socket and a few descriptors for each other rank.
OPEN_FILES_WANTED = 1024

SECRET_CHARACTERS_WANTED = 32

# Variables of launchers that do not tell all that a rank has to know.
_NOT_READ = {"JOB_COMPLETION_INDEX": "an indexed Job of Kubernetes", "DMLC_ROLE": "ps-lite's"}

# Of figures whose names do not say it.
_UNITS = {"timeout": "s", "heartbeat_timeout": "s", "available": "bytes", "limit": "bytes"}

_MODULES = ("numpy", "torch", "ml_dtypes", "rich", "matplotlib", "cupy", "prometheus-client")


def main(*, as_json: bool = False, environ: Mapping[str, str] | None = None) -> int:
    """Print the report.

    Args:
        as_json: One JSON object instead of text.
        environ: What to read instead of this process's environment.

    Returns:
        0, or 1 when gradring could not start a job here as things are.
    """
    found = report(os.environ if environ is None else environ)
    print(json.dumps(found, indent=2) if as_json else render(found))
    return 1 if found["problems"] else 0


def report(environ: Mapping[str, str]) -> Report:
    """Collect everything.

    Returns:
        Plain values only. ``problems`` keep a job from starting; ``warnings`` make it slower or
        weaker.
    """
    problems: list[str] = []
    warnings: list[str] = []
    role = _attempt(lambda: discover(environ), problems)
    is_clear = not problems
    settings = _attempt(lambda: config.Settings.from_environ(environ), problems)
    core = core_info()
    if "missing" in core:
        problems.append(
            f"the compiled core does not load: {core['missing']}; install the wheel again"
        )
    found: Report = {
        "versions": versions(),
        "core": {name: fact for name, fact in core.items() if name not in {"cuda", "nccl"}},
        "gpu": _gpu_facts(core),
        "role": _role_facts(role, environ, is_clear=is_clear),
        "settings": None if settings is None else vars(settings),
        "planner": _planner(role, settings, core, problems),
        "servers": _servers(environ, settings, core, problems),
        "network": _network(role, settings, problems),
        "cpus": host_facts.cpus(),
        "memory": {
            "memfd": host_facts.has_memfd(),
            "ptrace_scope": host_facts.ptrace_scope(),
            "available": host_facts.available_memory(),
            "limit": host_facts.memory_limit(),
            "open_files": host_facts.open_files()[0],
            "open_files_max": host_facts.open_files()[1],
        },
        "libraries": libraries(),
        "environment": config.variables_in_force(environ),
    }
    _judge_role(role, problems)
    _judge_environment(
        environ, warnings, is_alone=role is None and is_clear and not is_newcomer(environ)
    )
    _judge_machine(found, warnings)
    warnings += [
        f"{name} is set, but there is no such variable; did you mean {meant}?"
        for name, meant in config.misspelled_variables(environ).items()
    ]
    return {**found, "problems": problems, "warnings": warnings}


def versions() -> dict[str, str | None]:
    """Return the versions of gradring, Python, the kernel and what gradring works with."""
    own = {
        "gradring": host_facts.own_version(),
        "python": platform.python_version(),
        "kernel": host_facts.kernel(),
    }
    return {**own, **{name: host_facts.package_version(name) for name in _MODULES}}


def core_info() -> dict[str, Any]:
    """Return what the compiled core says about its build, or why it does not load."""
    try:
        return build_info()
    except ImportError as error:
        return {"missing": str(error)}


def libraries() -> dict[str, str | None]:
    """Return the shared libraries that are used where they are found."""
    return {
        "libcrypto": host_facts.can_load("libcrypto.so.3", "libcrypto.so.1.1"),
        "cuda": host_facts.can_load("libcuda.so.1"),
    }


def render(found: Report) -> str:
    """Return the report as text."""
    lines: list[str] = []
    titles = (
        "versions", "core", "gpu", "role", "settings", "planner", "servers", "cpus", "memory",
        "libraries",
    )  # fmt: skip
    for title in titles:
        lines += [title, *_rows(found[title])]
    network = found["network"]
    lines += ["network", *_rows({k: v for k, v in network.items() if k != "interfaces"})]
    for item in network["interfaces"]:
        mark = "  <- used" if item == network["chosen"] else ""
        lines.append(f"  {item['name']:<22} {item['address']}{mark}")
    lines += ["environment", *_rows(found["environment"])]
    for title in ("problems", "warnings"):
        lines += [title, *(f"  - {text}" for text in found[title] or ["none"])]
    return "\n".join(lines)


def _rows(values: Mapping[str, Any] | None) -> list[str]:
    if not values:
        return ["  none"]
    return [f"  {name:<22} {_text(value, _UNITS.get(name, ''))}" for name, value in values.items()]


def _text(value: object, unit: str = "") -> str:
    if value is None:
        return "-"
    if unit and isinstance(value, (int, float)):
        return f"{value / (1 << 30):.1f} GiB" if unit == "bytes" else f"{value:g} {unit}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(str(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    return str(value)


def _attempt(read: Callable[[], Any], problems: list[str]) -> Any:
    try:
        return read()
    except InvalidArgument as error:
        problems.append(str(error))
        return None


def _gpu_facts(core: dict[str, Any]) -> dict[str, Any]:
    """Say what was built and what of it works here."""
    if "missing" in core:
        return {}
    cuda = core["cuda"]
    return {
        "built for": cuda["built_for"] or f"no GPU: {cuda['built_why']}",
        "plugin": cuda["plugin"],
        **{name: fact for name, fact in gpu_facts().items() if name != "plugin"},
        "nccl": core["nccl"].get("missing") or f"{core['nccl']['version']} {core['nccl']['path']}",
    }


def _role_facts(role: Role | None, environ: Mapping[str, str], *, is_clear: bool) -> dict[str, Any]:
    if is_newcomer(environ):
        where = environ.get("GRADRING_RENDEZVOUS") or "a place that init() is not told"
        return {"source": f"a newcomer (GRADRING_NEWCOMER): joins the job at {where}"}
    if role is None:
        return {"source": "alone: no launcher's variables are set" if is_clear else "see problems"}
    return {
        "source": role.source,
        "rank": role.rank,
        "world_size": role.world_size,
        "local_rank": role.local_rank,
        "local_world_size": role.local_world_size,
        "rendezvous": role.rendezvous,
        "variables": list(role.variables),
    }


def _network(
    role: Role | None, settings: config.Settings | None, problems: list[str]
) -> dict[str, Any]:
    found = host_facts.interfaces()
    wanted = None if settings is None else settings.interface
    meeting = None
    if role is not None and role.world_size > 1:
        meeting = (role.rendezvous_host, role.rendezvous_port)
    chosen = host_facts.chosen_interface(found, wanted, meeting)
    if chosen is None and wanted is not None:
        problems.append(
            f"GRADRING_INTERFACE={wanted}: no interface that is up has that name or network"
        )
    elif chosen is None and meeting is not None:
        problems.append(
            f"no route to the rendezvous {meeting[0]}: is the name right, the network up?"
        )
    return {
        "interfaces": [vars(item) for item in found],
        "chosen": None if chosen is None else vars(chosen),
        "congestion_control": host_facts.setting("net.ipv4.tcp_congestion_control"),
        "tcp_rmem": host_facts.setting("net.ipv4.tcp_rmem"),
        "tcp_wmem": host_facts.setting("net.ipv4.tcp_wmem"),
    }


def _planner(
    role: Role | None,
    settings: config.Settings | None,
    core: dict[str, Any],
    problems: list[str],
) -> dict[str, str]:
    """Say by which costs algorithms are chosen, where the profile is read: by rank 0."""
    reads_it = role is None or role.rank == 0
    if settings is None or "missing" in core or not reads_it:
        return {}
    from gradring.doctor.choice_doctor import planner_facts  # Needs the core.

    return _attempt(lambda: planner_facts(settings.profile), problems) or {}


def _servers(
    environ: Mapping[str, str],
    settings: config.Settings | None,
    core: dict[str, Any],
    problems: list[str],
) -> dict[str, str]:
    found = _attempt(lambda: server_addresses.find(environ), problems)
    if not found:
        return {}
    secret = environ.get("GRADRING_SECRET")
    if not secret:
        problems.append("GRADRING_SECRET is not set; connect() needs that of the parameter servers")
    tls = "auto" if settings is None else settings.tls
    return server_doctor.ask(found, None if "missing" in core else secret, tls, problems)


def _judge_environment(environ: Mapping[str, str], warnings: list[str], *, is_alone: bool) -> None:
    secret = environ.get("GRADRING_SECRET", "")
    if secret.strip() and len(secret) < SECRET_CHARACTERS_WANTED:
        warnings.append(
            f"GRADRING_SECRET has {len(secret)} characters and could be guessed; better: "
            + HOW_TO_MAKE_ONE
        )
    for name, who in _NOT_READ.items():
        if is_alone and environ.get(name, "").strip():
            warnings.append(
                f"{name} is set ({who}), which gradring does not read: this process is alone; if "
                "it is one of several, set GRADRING_RANK, GRADRING_WORLD_SIZE and "
                "GRADRING_RENDEZVOUS in each (docs/launchers.md)"
            )


def _judge_role(role: Role | None, problems: list[str]) -> None:
    if role is None:
        return
    if role.secret is None and needs_secret(role):
        problems.append(f"GRADRING_SECRET is not set; the same on every rank: {HOW_TO_MAKE_ONE}")
    # Our launcher counts as hosts what its hosts file calls so, and knows which are this machine.
    is_ours = role.source == OWN.source
    is_apart = not role.is_single_host and not is_ours
    if role.world_size > 1 and is_loopback(role.rendezvous_host) and is_apart:
        problems.append(
            f"the rendezvous {role.rendezvous} is on loopback, but {role.source} says that the "
            "ranks are on several hosts; set GRADRING_RENDEZVOUS to rank 0's host"
        )


def _judge_machine(found: Report, warnings: list[str]) -> None:
    cpus, memory = found["cpus"], found["memory"]
    if cpus["quota"] is not None and cpus["quota"] < cpus["usable"]:
        warnings.append(
            f"the control group pays for {cpus['quota']:g} of {cpus['usable']} CPUs; start no more "
            "ranks than that, or raise its limit"
        )
    ranks = found["role"].get("local_world_size") or 1
    shared = max(cpus["usable"], host_facts.cpus_of_parent())
    if ranks > shared:
        warnings.append(f"{ranks} ranks share {shared} CPUs; each waits for the others")
    if not memory["memfd"]:
        warnings.append("memfd_create is refused (seccomp?), so ranks on this host talk over TCP")
    if memory["open_files"] < OPEN_FILES_WANTED:
        warnings.append(
            f"only {memory['open_files']} open files; raise that: ulimit -n {OPEN_FILES_WANTED}"
        )
    if found["libraries"]["libcrypto"] is None:
        warnings.append("libcrypto was not found; only loopback can be used (apt install libssl3)")
    if not found["network"]["interfaces"]:
        warnings.append("no network interface is up, not even loopback; ranks cannot meet")
