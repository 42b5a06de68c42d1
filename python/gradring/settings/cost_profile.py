"""What links cost, as a file: `gradring tune` writes it, rank 0 of a job reads it for all ranks.

A profile only moves the sizes at which the planner goes from one algorithm to the next
(docs/tuning.md). A file that is not exactly what this version writes is refused by file and field:
a profile that is half understood would make a job slow for no reason that anybody can see.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradring.commands.output_files import write_whole
from gradring.errors import InvalidArgument
from gradring.settings.config import MOST_STREAMS

VERSION = 1
LINK_TRANSPORTS = ("tcp", "shm")

# Whole numbers and texts that `made` may hold.
_MADE_TEXTS = ("date", "gradring", "cpu", "kernel", "python", "congestion_control")
_MOST = 1e9


@dataclass(frozen=True)
class Costs:
    """One transport's figures, as the cost model wants them.

    Attributes:
        latency_us: Microseconds of a step: a small message sent, received and acted on.
        bandwidth_gb_s: What a rank sends while it receives as much, 10^9 bytes a second.
        reduce_gb_s: Result bytes of adding two vectors, 10^9 a second.
        further_link: What each further link in the same step costs, as a part of a step.
    """

    latency_us: float
    bandwidth_gb_s: float
    reduce_gb_s: float
    further_link: float

    def as_tuple(self) -> tuple[float, float, float, float]:
        """Return them as the compiled core takes them."""
        return (self.latency_us, self.bandwidth_gb_s, self.reduce_gb_s, self.further_link)


@dataclass(frozen=True)
class Measured:
    """One transport's costs and how they came about.

    Attributes:
        costs: The figures.
        ranks: How many ranks measured.
        hosts: On how many hosts they were.
        error: Median of |estimated / measured - 1| over all that was measured.
        streams: Connections of a link between hosts meanwhile; jobs with the profile have as many.
    """

    costs: Costs
    ranks: int
    hosts: int
    error: float
    streams: int = 1


@dataclass(frozen=True)
class Profile:
    """All of a file.

    Attributes:
        transports: ``tcp``, ``shm`` or both.
        made: On what, with what, and when: texts for people.
    """

    transports: Mapping[str, Measured]
    made: Mapping[str, str] = field(default_factory=dict)

    def as_costs(self) -> dict[str, tuple[float, float, float, float]]:
        """Return the costs as the compiled core takes them."""
        return {name: measured.costs.as_tuple() for name, measured in self.transports.items()}

    @property
    def streams(self) -> int:
        """Connections of a link between hosts."""
        return self.transports["tcp"].streams if "tcp" in self.transports else 1


def save(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write the file, whole or not at all; a pipe or a device is written to as it is.

    Raises:
        OSError: It cannot be written.
    """
    document = {
        "version": VERSION,
        "made": dict(profile.made),
        "transports": {
            name: {
                **vars(measured.costs),
                "ranks": measured.ranks,
                "hosts": measured.hosts,
                "error": measured.error,
                **({"streams": measured.streams} if measured.streams > 1 else {}),
            }
            for name, measured in profile.transports.items()
        },
    }
    write_whole(path, json.dumps(document, indent=1) + "\n")


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a file that `save` wrote.

    Raises:
        InvalidArgument: It cannot be read, or a field is missing, unknown or makes no sense; names
            the file and the field.
    """
    try:
        document = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the profile {os.fspath(path)} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the profile {os.fspath(path)} is no JSON: {error}") from None
    try:
        return _parse(document)
    except _Wrong as wrong:
        raise InvalidArgument(
            f"the profile {os.fspath(path)}: {wrong}; `gradring tune` writes a new one"
        ) from None


class _Wrong(Exception):  # noqa: N818 - says what is wrong, without the file's name
    """Which field is wrong, and how."""


def _parse(document: object) -> Profile:
    if not isinstance(document, dict):
        raise _Wrong("it is no JSON object")
    # First, because another version may have any other fields.
    if document.get("version") != VERSION:
        raise _Wrong(f"version is {document.get('version')!r}, not {VERSION}")
    _check_fields("", document, {"version", "made", "transports"})
    made = document["made"]
    if not isinstance(made, dict):
        raise _Wrong("made is no object")
    _check_fields("made.", made, set(made) & set(_MADE_TEXTS))
    for name, text in made.items():
        if not isinstance(text, str):
            raise _Wrong(f"made.{name} is {text!r}, no text")
    transports = document["transports"]
    if not isinstance(transports, dict) or not transports:
        raise _Wrong("transports is no object with one of " + ", ".join(LINK_TRANSPORTS))
    _check_fields("transports.", transports, set(transports) & set(LINK_TRANSPORTS))
    return Profile(
        {name: _measured(f"transports.{name}", fields) for name, fields in transports.items()},
        made,
    )


def _measured(where: str, fields: object) -> Measured:
    if not isinstance(fields, dict):
        raise _Wrong(f"{where} is no object")
    rates = ("latency_us", "bandwidth_gb_s", "reduce_gb_s")
    fields = {"streams": 1, **fields}  # Left out where it is one, as in files of before.
    wanted = {*rates, "further_link", "ranks", "hosts", "error", "streams"}
    _check_fields(f"{where}.", fields, wanted)
    for name in rates:
        _check_number(f"{where}.{name}", fields[name], is_zero_allowed=False)
    for name in ("further_link", "error"):
        _check_number(f"{where}.{name}", fields[name], is_zero_allowed=True)
    for name in ("ranks", "hosts", "streams"):
        if type(fields[name]) is not int or fields[name] < 1:
            raise _Wrong(f"{where}.{name} is {fields[name]!r}, not a whole number from 1")
    if fields["streams"] > MOST_STREAMS:
        raise _Wrong(f"{where}.streams is {fields['streams']}, above {MOST_STREAMS}")
    costs = Costs(*(float(fields[name]) for name in (*rates, "further_link")))
    return Measured(
        costs, fields["ranks"], fields["hosts"], float(fields["error"]), fields["streams"]
    )


def _check_fields(where: str, found: Mapping[str, Any], wanted: set[str]) -> None:
    for name in sorted(wanted - found.keys()):
        raise _Wrong(f"{where}{name} is missing")
    for name in sorted(found.keys() - wanted):
        raise _Wrong(f"{where}{name} is not known")


def _check_number(where: str, value: object, *, is_zero_allowed: bool) -> None:
    # JSON's true is Python's 1.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Wrong(f"{where} is {value!r}, not a number")
    # A whole number may have more digits than a float can hold.
    if isinstance(value, int) and value > _MOST:
        raise _Wrong(f"{where} is above {_MOST:g}")
    if isinstance(value, float) and not math.isfinite(value):
        raise _Wrong(f"{where} is {value!r}, not a number")
    if value < 0 or (value == 0 and not is_zero_allowed):
        raise _Wrong(f"{where} is {value!r}, not {'0 or more' if is_zero_allowed else 'above 0'}")
    if value > _MOST:
        raise _Wrong(f"{where} is {value!r}, above {_MOST:g}")
