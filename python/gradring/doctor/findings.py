"""What the records of a job's ranks say together: who is in what, who is missing, what differs.

Pure functions of `gradring.doctor.jobs.Report`s. Used by `gradring doctor --job`.
"""

from __future__ import annotations

import reprlib
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gradring.doctor.jobs import Report

Operation = dict[str, Any]

_OPEN = ("started", "failed")
# Arrivals of so many operations are compared, and said where they differ by so much.
_ARRIVALS = 50
_UNEVEN_SECONDS = 1e-3
# Names of spans are the user's: of any length, and of characters that a terminal obeys.
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = 64


@dataclass(frozen=True)
class Status:
    """One line of the table: what a rank is in, or was in last."""

    rank: int
    group: str
    doing: str
    seconds: float | None
    waits_for: str
    moved: str


def call_text(operation: Operation) -> str:
    """Return ``all_reduce #17 (float32 x 1048576, sum)``, as errors show it."""
    inside = []
    if "count" in operation:
        inside.append(f"{operation['dtype']} x {operation['count']}")
    if "reduce_op" in operation:
        inside.append(operation["reduce_op"])
    if "root" in operation:
        inside.append(f"root {operation['root']}")
    if "counts" in operation:
        inside.append(f"counts {operation['counts'][-4:]}")
    if "tag" in operation:
        inside.append(f"tag {operation['tag']}")
    number = f" #{operation['seq']}" if "seq" in operation else ""
    return str(operation["op"]) + number + (f" ({', '.join(inside)})" if inside else "")


def statuses(report: Report) -> list[Status]:
    """Return what this rank is in: an entry a communicator with something under way, or one."""
    if report.record is None:
        return [Status(report.rank, "", report.problem, None, "", "")]
    record = report.record
    found = [
        _status(report, group, operation)
        for group in record["communicators"]
        for operation in (*group["operations"], *group["messages"])
        if operation["state"] == "started" or _has_just_failed(group, operation)
    ]
    if found:
        return found
    ended = [
        (int(operation["end"]), call_text(operation), group)
        for group in record["communicators"]
        for operation in (*group["operations"], *group["messages"])
        if "end" in operation
    ]
    inside = _inside(record)
    if not ended:
        return [Status(report.rank, "", "in no call yet" + inside, None, "", "")]
    end, text, group = max(ended, key=lambda item: item[0])
    return [
        Status(
            report.rank, _group_name(group), f"in no call; the last was {text}{inside}",
            (record["now"] - end) / 1e9, "", "",
        )
    ]  # fmt: skip


def findings(reports: Sequence[Report]) -> list[str]:
    """Return what is wrong, the most telling first."""
    found = [f"rank {report.rank} {report.problem}" for report in reports if report.record is None]
    failures = {
        report.record["failure"]["text"]: report.rank
        for report in reversed(reports)
        if report.record is not None and report.record["failure"] is not None
    }
    found += [f"rank {rank} failed: {text}" for text, rank in sorted(failures.items(), key=_second)]
    for group in _groups(reports):
        found += _differing(group) + _missing(group) + _unanswered(group) + _uneven(group)
    return found


@dataclass(frozen=True)
class _Member:
    rank: int
    report: Report
    group: dict[str, Any]

    def seconds_since(self, time: int) -> float:
        assert self.report.record is not None
        return float((self.report.record["now"] - time) / 1e9)


def _second(item: tuple[str, int]) -> int:
    return item[1]


def _groups(reports: Iterable[Report]) -> list[dict[int, _Member]]:
    groups: dict[str, dict[int, _Member]] = {}
    for report in reports:
        for group in (report.record or {"communicators": []})["communicators"]:
            groups.setdefault(group["id"], {})[report.rank] = _Member(report.rank, report, group)
    return list(groups.values())


def _has_just_failed(group: dict[str, Any], operation: Operation) -> bool:
    return operation["state"] == "failed" and not group["is_closed"]


def _status(report: Report, group: dict[str, Any], operation: Operation) -> Status:
    assert report.record is not None
    until: int = operation.get("end") or report.record["now"]
    begin: int = operation.get("begin") or until
    moved = [
        f"{operation[done]} of {operation[total]} bytes {word}"
        for done, total, word in (
            ("received", "to_receive", "received"),
            ("sent", "to_send", "sent"),
        )
        if total in operation and operation[done] < operation[total]
    ]
    other = operation.get("awaited", operation.get("peer"))
    failed = "failed in " if operation["state"] == "failed" else ""
    return Status(
        report.rank, _group_name(group), failed + call_text(operation), (until - begin) / 1e9,
        "" if other is None else f"rank {other}", ", ".join(moved),
    )  # fmt: skip


def _group_name(group: dict[str, Any]) -> str:
    if int(group["id"], 16) == 1:
        return "all"
    return ",".join(map(str, group["ranks"]))


def _open_call(member: _Member) -> Operation | None:
    for operation in reversed(member.group["operations"]):
        if operation["state"] in _OPEN:
            return dict(operation)
    return None


def _last_seq(member: _Member) -> int:
    return max((operation.get("seq", 0) for operation in member.group["operations"]), default=0)


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


def _differing(group: dict[int, _Member]) -> list[str]:
    calls: dict[int, dict[str, list[int]]] = {}
    for member in group.values():
        operation = _open_call(member)
        if operation is not None:
            texts = calls.setdefault(operation["seq"], {})
            texts.setdefault(call_text(operation), []).append(member.rank)
    return [
        "different calls: "
        + " but ".join(f"{_ranks(ranks)} called {text}" for text, ranks in texts.items())
        for _, texts in sorted(calls.items())
        if len(texts) > 1
    ]


def _missing(group: dict[int, _Member]) -> list[str]:
    waiting = {member.rank: call for member in group.values() if (call := _open_call(member))}
    if not waiting:
        return []
    newest = max(call["seq"] for call in waiting.values())
    inside = {rank: call for rank, call in waiting.items() if call["seq"] == newest}
    text = call_text(next(iter(inside.values())))
    found = []
    for member in group.values():
        if _last_seq(member) >= newest:
            continue
        call = waiting.get(member.rank)
        if call is not None:
            where = f"it is still in {call_text(call)}"
        else:
            where = _whereabouts(member)
        found.append(
            f"rank {member.rank} is missing in {text}, which {_ranks(inside)} called: {where}"
        )
    return found


def _whereabouts(member: _Member) -> str:
    ended = [operation for operation in member.group["operations"] if "end" in operation]
    inside = _inside(member.report.record or {})
    if not ended:
        return f"it has made no call yet{inside}"
    last = ended[-1]
    return (
        f"its last call, {call_text(last)}, ended {member.seconds_since(last['end']):.1f} s before "
        f"its record was made{inside}"
    )


def _inside(record: dict[str, Any]) -> str:
    names = [_SHOWN.repr(span["name"]) for span in record.get("spans", ()) if "end" not in span]
    return f"; it is in {', '.join(names)}" if names else ""


def _unanswered(group: dict[int, _Member]) -> list[str]:
    found = []
    for member in group.values():
        for message in member.group["messages"]:
            other = group.get(message.get("peer", -1))
            if message["op"] != "recv" or message["state"] not in _OPEN or other is None:
                continue
            has_send = any(
                sent["op"] == "send"
                and sent["peer"] == member.rank
                and sent["tag"] == message["tag"]
                and sent["state"] in _OPEN
                for sent in other.group["messages"]
            )
            if not has_send:
                found.append(
                    f"rank {member.rank} waits in recv from rank {other.rank} with tag "
                    f"{message['tag']}, which is sending nothing with that tag"
                )
    return found


def arrivals(group: dict[int, _Member]) -> list[dict[int, int]]:
    """When each rank began an operation, on the common clock, for those that all of them began."""
    begins: dict[int, dict[int, int]] = {}
    for member in group.values():
        for operation in member.group["operations"]:
            if "seq" in operation and "begin" in operation:
                begins.setdefault(operation["seq"], {})[member.rank] = (
                    operation["begin"] - member.report.offset
                )
    return [times for _, times in sorted(begins.items()) if len(times) == len(group)]


def _uneven(group: dict[int, _Member]) -> list[str]:
    seen = arrivals(group)[-_ARRIVALS:]
    if len(seen) < 3 or len(group) < 2:
        return []
    spreads = [(max(times.values()) - min(times.values())) / 1e9 for times in seen]
    typical = statistics.median(spreads)
    unsure = max(member.report.error for member in group.values()) / 1e9
    if typical < max(_UNEVEN_SECONDS, 2 * unsure):
        return []
    last, times = Counter(max(times, key=times.__getitem__) for times in seen).most_common(1)[0]
    text = (
        f"uneven arrival: rank {last} came last in {times} of the last {len(seen)} operations; "
        f"{typical * 1e3:.1f} ms lie between the first rank and the last (median)"
    )
    return [text]
