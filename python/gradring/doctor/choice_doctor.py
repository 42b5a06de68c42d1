"""`gradring doctor --size 1M`: which algorithm a call of that size takes, and by which figures.

Read from the settings in force; nothing is started. Over TCP it is told for ranks on hosts of their
own: ranks on several hosts with several each may take ``hierarchical``, which depends on who is
where.
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
from gradring.settings import config, cost_profile
from gradring.tune import choices
from gradring.tune.choices import Question

DEFAULT_SIZES = (64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
DEFAULT_RANKS = 4
_MOST_PATH_MS = 1e6


@dataclass(frozen=True)
class Asked:
    """What to answer for.

    Attributes:
        sizes: Bytes of the whole message.
        op: An operation's name.
        ranks: How many.
        path_ms: Milliseconds one way between their hosts, as ranks measure when they join.
    """

    sizes: Sequence[int] = DEFAULT_SIZES
    op: str = "all_reduce"
    ranks: int = DEFAULT_RANKS
    path_ms: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a way that is none.

        Raises:
            InvalidArgument: It is negative or no number.
        """
        if not 0 <= self.path_ms <= _MOST_PATH_MS:
            raise InvalidArgument(f"--path-ms {self.path_ms:g}: not from 0 to {_MOST_PATH_MS:g}")


def main(asked: Asked, *, as_json: bool, environ: Mapping[str, str] | None = None) -> int:
    """Print the choices.

    Raises:
        InvalidArgument: The question or the profile makes no sense.
    """
    found = report(asked, os.environ if environ is None else environ)
    print(json.dumps(_finite(found), indent=2, allow_nan=False) if as_json else render(found))
    return 0


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
    return {
        "op": asked.op,
        "ranks": asked.ranks,
        "path_ms": asked.path_ms,
        "dtype": "float32",
        "profile": path,
        "transports": {
            transport: {
                "source": source,
                "costs": vars(figures),
                "choices": [
                    vars(choices.choose(Question(asked.op, asked.ranks, transport), size, figures))
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
