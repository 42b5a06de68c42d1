"""What `gradring tune` found, as a document and as tables."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, TextIO

from gradring.bench import table
from gradring.bench.report import machine_facts
from gradring.machine import host_facts
from gradring.settings.cost_profile import Costs, Measured, Profile
from gradring.tune import choices
from gradring.tune.choices import Question
from gradring.tune.fit import Quality

Document = dict[str, Any]

_CROSSOVER_SIZES = [1 << power for power in range(2, 31)]
_SHOWN_OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
_FIGURE_COLUMNS = [
    "costs", "latency us", "GB/s", "add GB/s", "further link", "error", "lost", "at most",
]  # fmt: skip
_RANGE_COLUMNS = ["operation", "costs", "size algorithm"]
_LEGEND = (
    "error: median of |estimate / measured - 1| over all algorithms and sizes",
    "lost: how much slower the algorithm that would be taken was than the fastest: mean, worst",
)


@dataclass(frozen=True)
class Found:
    """What was measured over one transport.

    Attributes:
        transport: ``tcp`` or ``shm``.
        measured: Its new costs.
        quality: Of those.
        before: Of the defaults, on the same times.
        flat_won: In how many cases the shared segment beat every algorithm over links.
        flat_asked: Of how many.
    """

    transport: str
    measured: Measured
    quality: Quality
    before: Quality
    flat_won: int = 0
    flat_asked: int = 0


def profile_of(found: list[Found]) -> Profile:
    """Put the transports together with what they were measured on."""
    facts = machine_facts()
    made = {
        "date": facts["date"],
        "gradring": host_facts.own_version(),
        "cpu": facts["cpu"],
        "kernel": facts["kernel"],
        "python": facts["python"],
        "congestion_control": str(facts["tcp_congestion_control"]),
    }
    return Profile({each.transport: each.measured for each in found}, made)


def document_of(found: list[Found]) -> Document:
    """Return everything, as `--json` prints it."""
    return {
        "machine": machine_facts(),
        "transports": {
            each.transport: {
                "ranks": each.measured.ranks,
                "hosts": each.measured.hosts,
                "costs": vars(each.measured.costs),
                "defaults": vars(choices.default_costs()[each.transport]),
                "quality": vars(each.quality),
                "quality_of_defaults": vars(each.before),
                "flat": {"won": each.flat_won, "cases": each.flat_asked},
                "crossovers": {op: crossovers(each, op) for op in _SHOWN_OPERATIONS},
            }
            for each in found
        },
    }


def show(found: list[Found], stream: TextIO | None = None) -> None:
    """Print the tables, on standard output if nothing else is given."""
    stream = sys.stdout if stream is None else stream  # Of now: another one may have its place.
    facts = machine_facts()
    cpus = facts["cpus"]
    print(f"# {facts['cpu']}, {cpus['usable']} cores, load {facts['load']}", file=stream)
    for each in found:
        measured = each.measured
        title = f"{each.transport}: {measured.ranks} ranks, hosts: {measured.hosts}"
        defaults = choices.default_costs()[each.transport]
        figures = [
            _figures("measured", measured.costs, each.quality),
            _figures("defaults", defaults, each.before),
        ]
        print(file=stream)
        table.show_rows(title, _FIGURE_COLUMNS, figures, stream)
        if each.transport == "shm":
            print(f"# {_flat_text(each)}", file=stream)
            continue
        rows = []
        for op in _SHOWN_OPERATIONS:
            for source, ranges in crossovers(each, op).items():
                rows.append([op, source, "  ".join(f"{size} {name}" for size, name in ranges)])
        print(file=stream)
        table.show_rows(f"{each.transport}: from which size on", _RANGE_COLUMNS, rows, stream)
    print(file=stream)
    for line in _LEGEND:
        print(f"# {line}", file=stream)


def crossovers(found: Found, op: str) -> dict[str, list[tuple[str, str]]]:
    """Return from which size on which algorithm is taken, by the new costs and by the defaults."""
    question = Question(op, found.measured.ranks, found.transport)
    sources = {
        "measured": found.measured.costs,
        "defaults": choices.default_costs()[found.transport],
    }
    return {
        source: [
            (table.size_text(size), name)
            for size, name in choices.ranges(question, _CROSSOVER_SIZES, costs)
        ]
        for source, costs in sources.items()
    }


def _figures(source: str, costs: Costs, quality: Quality) -> list[str]:
    return [
        source,
        *(table.number(figure) for figure in costs.as_tuple()),
        *(f"{100 * part:.0f} %" for part in (quality.error, quality.lost, quality.worst)),
    ]


def _flat_text(found: Found) -> str:
    return (
        "ranks that share memory take 'flat' at every size: it was the fastest in "
        f"{found.flat_won} of {found.flat_asked} cases"
    )
