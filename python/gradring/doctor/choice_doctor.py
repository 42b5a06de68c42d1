"""`gradring doctor --size 1M`: which algorithm a call of that size takes, and by which figures.

Read from the settings in force; nothing is started. Over TCP it is told for ranks on hosts of their
own; what ranks on several hosts with several each take, which depends on who is where, a line says.
As the program of a job rank 0 answers, for as many ranks as the job has.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradring.bench.table import number, plain, size_text
from gradring.errors import InvalidArgument
from gradring.launchers.roles import Role, discover
from gradring.settings import config, cost_profile
from gradring.tune import choices
from gradring.tune.choices import Question

DEFAULT_SIZES = (64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
DEFAULT_RANKS = 4
_MOST_PATH_MS = 1e6
_HIERARCHICAL_BYTES = 64 << 10  # The engine's; only of these operations.
_HIERARCHICAL_OPS = ("all_reduce", "broadcast")


@dataclass(frozen=True)
class Asked:
    """What to answer for.

    Attributes:
        sizes: Bytes of the whole message.
        op: An operation's name.
        ranks: How many; ``None``: those of the job that this is started in, or 4.
        path_ms: Milliseconds one way between their hosts, as ranks measure when they join.
    """

    sizes: Sequence[int] = DEFAULT_SIZES
    op: str = "all_reduce"
    ranks: int | None = None
    path_ms: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a way that is none.

        Raises:
            InvalidArgument: It is negative or no number.
        """
        if not 0 <= self.path_ms <= _MOST_PATH_MS:
            raise InvalidArgument(f"--path-ms {self.path_ms:g}: not from 0 to {_MOST_PATH_MS:g}")


def main(asked: Asked, *, as_json: bool, environ: Mapping[str, str] | None = None) -> int:
    """Print the choices, in a job on rank 0 alone.

    Raises:
        InvalidArgument: The question or the profile makes no sense.
    """
    environ = os.environ if environ is None else environ
    role = _role(environ)
    found = report(asked, environ)
    if role is not None and role.rank != 0:
        return 0
    print(json.dumps(_finite(found), indent=2, allow_nan=False) if as_json else render(found))
    return 0


def _role(environ: Mapping[str, str]) -> Role | None:
    try:
        return discover(environ)
    except InvalidArgument:  # What is wrong with the variables the report on the machine says.
        return None


def _finite(found: Any) -> Any:
    """Return plain values with ``None`` for estimates beyond any number: JSON knows no infinity."""
    if isinstance(found, dict):
        return {name: _finite(each) for name, each in found.items()}
    if isinstance(found, list):
        return [_finite(each) for each in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def report(asked: Asked, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the choices of both transports as plain values; times in microseconds."""
    path = config.Settings.from_environ(environ).profile
    costs = _costs(path, asked.path_ms)
    role, ranks = _role(environ), asked.ranks
    if ranks is None:
        ranks = role.world_size if role is not None and role.world_size > 1 else DEFAULT_RANKS
    return {
        "op": asked.op,
        "ranks": ranks,
        "path_ms": asked.path_ms,
        "dtype": "float32",
        "profile": path,
        "transports": {
            transport: {
                "source": source,
                "costs": vars(figures),
                "choices": [
                    vars(choices.choose(Question(asked.op, ranks, transport), size, figures))
                    for size in asked.sizes
                ],
            }
            for transport, (figures, source) in costs.items()
        },
    }


def render(found: Mapping[str, Any]) -> str:
    """Return the choices as text."""
    lines = [f"{found['op']} of {found['dtype']} between {found['ranks']} ranks"]
    for transport, answer in found["transports"].items():
        lines += ["", f"{transport}: {_source_text(answer['source'], found['profile'])}"]
        rows = [
            [size_text(each["nbytes"]), each["algorithm"], number(each["estimate_us"])]
            for each in answer["choices"]
        ]
        lines.append(plain(["size", "algorithm", "estimated us"], rows))
    largest = max(each["nbytes"] for each in found["transports"]["tcp"]["choices"])
    if found["op"] in _HIERARCHICAL_OPS and largest >= _HIERARCHICAL_BYTES:
        several = (
            "tcp is for one rank a host. Several hosts, one of which has several ranks, take "
            f"hierarchical from {size_text(_HIERARCHICAL_BYTES)} on (not for 16-bit floats in "
            "all_reduce)."
        )
        lines += ["", several]
    return "\n".join(lines)


def planner_facts(profile: str | None) -> dict[str, str]:
    """Return each transport's costs in words, for the report on this machine.

    Raises:
        InvalidArgument: The profile is none.
    """
    return {
        transport: f"{_source_text(source, profile)}: {costs.latency_us:.3g} us a step, "
        f"{costs.bandwidth_gb_s:.3g} GB/s each way, adds {costs.reduce_gb_s:.3g} GB/s, "
        f"{costs.further_link:.2g} of a step for a further link"
        for transport, (costs, source) in _costs(profile).items()
    }


def _costs(path: str | None, path_ms: float = 0.0) -> dict[str, tuple[cost_profile.Costs, str]]:
    given = {} if path is None else cost_profile.load(path).transports
    measured = {name: each.costs for name, each in given.items()}
    return choices.costs_in_force(measured, path_ms * 1e3)


def _source_text(source: str, path: str | None) -> str:
    return f"profile {path}" if source == "profile" else "defaults"
