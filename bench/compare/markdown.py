"""The JSON files as Markdown. A time has its ratio beside it, so that nobody has to divide."""

from __future__ import annotations

from pathlib import Path

from compare import cells, records
from compare.cells import OURS
from compare.records import Document
from gradring.bench.report import header_lines, machine_lines
from gradring.bench.table import number, size_text

_LEAST_STREAM_BYTES = 4 << 20  # What streams are measured with at least.

_INTRODUCTION = """# Side by side

Made by `python bench/compare table` from the JSON beside it. Times are microseconds a call. In
brackets, how many times as long the peer took: the median of the rounds, lowest and highest; bold
where that is below 1. All libraries ran in turn, A B C A B C, and every result was compared. "of
streams" is our processor time over that of plain TCP streams of the bytes that must move, with
system calls of 1 MiB and nothing added up."""


def whole(folder: Path) -> str:
    """Return all tables of a folder's files."""
    documents = cells.documents(folder, "shm", "tcp")
    parts = [_INTRODUCTION]
    if documents:
        parts.append(_totals(documents))
    parts += [_collectives(document) for document in documents]
    if documents:
        lines = [
            _loss(document, *loss) for document in documents for loss in cells.losses(document)
        ]
        text = "\n".join(f"- {line}" for line in lines) or "Nowhere."
        parts.append(f"## Where a peer was faster in most rounds\n\n{text}")
    parts += [_network(one) for path in sorted(folder.glob("network-*.json"))
              if (one := records.load(path))]  # fmt: skip
    parts += [_rows(one) for path in sorted(folder.glob("rows*.json"))
              if (one := records.load(path))]  # fmt: skip
    parts += [_training(one) for name in ("word2vec", "ctr")
              if (one := records.load(folder / f"{name}.json"))]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _totals(documents: list[Document]) -> str:
    lines = [["", "cells", "ahead of the best peer", "least", "median", "most"]]
    lines.append(["---", *["---:"] * 5])
    for document in documents:
        found = [cells.best_peer(row) for each in document["operations"] for row in each["rows"]]
        ratios = sorted(ratio for _, ratio in filter(None, found))
        if ratios:
            ahead = sum(ratio > 1 for ratio in ratios)
            spread = (ratios[0], ratios[len(ratios) // 2], ratios[-1])
            figures = [str(len(ratios)), str(ahead), *(f"{number(one)}x" for one in spread)]
            lines.append([_where(document), *figures])
    return _table(lines)


def _where(document: Document) -> str:
    where = f"{document['world_size']} ranks, {document['transport']}"
    is_tcp = document["transport"].startswith("tcp")
    return f"{where}, system's {cells.control(document)}" if is_tcp else where


def _collectives(document: Document) -> str:
    """A document's tables, one for each operation."""
    where = _where(document)
    lines = [f"## {where}", "", f"`{document['command']}`", ""]
    short = {name: _short(reason) for name, reason in document["missing"].items()}
    lines += [f"- {line}" for line in header_lines({**document, "missing": short})]
    lines += [f"- {line}" for line in _measured(document)]
    lines += [
        f"- failed and was started anew: {_short(one)}" for one in document.get("failures", [])
    ]
    for operation in document["operations"]:
        lines += ["", f"### {operation['op']}, {where}", "", _operation(operation)]
    return "\n".join(lines)


def _measured(document: Document) -> list[str]:
    stamps = [row["measured"] for each in document["operations"] for row in each["rows"]
              if "measured" in row]  # fmt: skip
    if not stamps:
        return []
    commits = ", ".join(dict.fromkeys(stamp["commit"] for stamp in stamps))
    dates = [stamp["date"] for stamp in stamps]
    loads = [stamp["load"] for stamp in stamps]
    return [f"commit {commits}; {min(dates)} to {max(dates)}, load {min(loads)} to {max(loads)}"]


def _operation(operation: Document) -> str:
    rows = operation["rows"]
    peers = _peers(rows)
    heads = ["size", OURS, "busbw GB/s", "CPU s/GB", "of streams", "bound", "algorithm", *peers]
    lines = [heads, ["---:"] * len(heads)]
    for row in rows:
        ours = row["results"][OURS]
        figures = (ours["time_us"], ours["busbw_gbs"], ours["cpu_s_per_gb"])
        wrong = f" ({ours['wrong']} WRONG)" if ours["wrong"] else ""
        shown = [size_text(row["bytes"]), *map(number, figures), _of_streams(row)]
        shown += [number(row["bound_us"]), row["algorithm"] or "-"]
        shown[1] += wrong
        lines.append([*shown, *(_peer(row, name) for name in peers)])
    return _table(lines)


def _of_streams(row: Document) -> str:
    """Our processor time over that of plain TCP streams of the bytes that must move."""
    plain = row.get("link_cpu_s_per_gb")
    if not plain or row["bytes"] < _LEAST_STREAM_BYTES:
        return "-"
    return f"{number(row['results'][OURS]['cpu_s_per_gb'] / plain)}x"


def _peers(rows: list[Document]) -> list[str]:
    names = (name for row in rows for name in (*row["results"], *row.get("failed", ())))
    return [name for name in dict.fromkeys(names) if name != OURS]


def _peer(row: Document, name: str) -> str:
    """A peer's time, and the ratio to ours with its spread."""
    if name not in row["ratios"]:
        return "failed" if name in row.get("failed", ()) else "-"
    ratio, result = row["ratios"][name], row["results"][name]
    spread = f"{number(ratio['low'])} to {number(ratio['high'])}"
    text = f"{number(result['time_us'])} ({number(ratio['median'])}x; {spread})"
    if result["wrong"]:
        return f"{text} {result['wrong']} WRONG"
    return f"**{text}**" if ratio["median"] < 1 else text


def _loss(document: Document, op: str, row: Document, name: str, ratio: Document) -> str:
    spread = f"{number(ratio['low'])} to {number(ratio['high'])}"
    return (
        f"{op}, {_where(document)}, {size_text(row['bytes'])}: {name} {number(ratio['median'])}x "
        f"({spread}), we won {ratio['won']:.0%} of rounds"
    )


def _network(document: Document) -> str:
    """all_reduce between shaped hosts, as shares of the line's rate."""
    mbit = document["mbit"]
    lines = [f"## {document['title']}", "", f"`{document['command']}`", ""]
    short = {name: _short(reason) for name, reason in document["missing"].items()}
    lines += [f"- {line}" for line in header_lines({**document, "missing": short})]
    lines += [f"- {line}" for line in _measured(document)]
    rows = records.rows_of(document, "all_reduce")
    names = [OURS, *_peers(rows)]
    table = [["size", "least ms", *(f"{name} ms, share" for name in names)]]
    table.append(["---:"] * len(table[0]))
    for row in rows:
        shown = [size_text(row["bytes"]), number(row["least_ms"])]
        for name in names:
            result = row["results"].get(name)
            share = 0.0 if result is None else result["busbw_gbs"] * 8e3 / max(mbit)
            shown.append("-" if result is None else f"{result['time_us'] / 1e3:.1f}, {share:.3f}")
        table.append(shown)
    about = "share: bus bandwidth of the fastest host's rate"
    if not document.get("delay_ms"):
        about += "; 1500-byte packets leave 0.956 at most"
    return "\n".join([*lines, "", _table(table), "", f"least ms: {document['bound']}; {about}."])


def _heading(document: Document) -> list[str]:
    """What was measured at once: title, command, machine, state of the code, and what it is."""
    stamp = document["measured"]
    about = [
        *machine_lines(document["machine"]),
        f"commit {stamp['commit']}; {stamp['date']}, load {stamp['load']}",
        *document["about"],
    ]
    lines = [f"## {document['title']}", "", f"`{document['command']}`", ""]
    return lines + [f"- {line}" for line in about]


def _rows(document: Document) -> str:
    """Pairs of pull and push beside peers, distinct ids beside distinct ids."""
    lines = _heading(document)
    lines += [f"- {_short(reason)}" for reason in document["missing"].values()]
    table = [["", "M rows/s, median (turns)", "of the best peer"], ["---", "---:", "---:"]]
    median = {name: _median(found) for name, found in document["million_rows_per_s"].items()}
    for name, found in document["million_rows_per_s"].items():
        rivals = [
            each
            for other, each in median.items()
            if OURS not in other and ("distinct" in other) == ("distinct" in name)
        ]
        ratio = f"{number(median[name] / max(rivals))}x" if rivals and OURS in name else ""
        spread = f"{number(min(found))}-{number(max(found))}"
        table.append([name, f"{number(median[name])} ({spread})", ratio])
    return "\n".join([*lines, "", _table(table)])


def _training(document: Document) -> str:
    """A workload's contenders, a table for each of its data sets."""
    lines = _heading(document)
    lines += [f"- {name}: {_short(reason)}" for name, reason in document["missing"].items()]
    for part in document["parts"]:
        runs = {name: each for name, each in part["runs"].items() if each}
        if not runs:
            continue
        unit = part["unit"]
        table = [[part["title"], f"{unit}/s, median (rounds)", "quality", *_rivals(runs)]]
        table.append(["---", *["---:"] * (len(table[0]) - 1)])
        for name, each in runs.items():
            rates = [run["rate"] for run in each]
            spread = f"{_thousands(min(rates))}-{_thousands(max(rates))}"
            quality = ", ".join(_quality(each, key) for key in each[0]["quality"])
            shown = [name, f"{_thousands(_median(rates))} ({spread})", quality]
            table.append(shown + [_over(rates, runs[rival]) for rival in _rivals(runs)])
        lines += ["", _table(table)]
    return "\n".join(lines)


def _rivals(runs: Document) -> list[str]:
    return [name for name in runs if not name.startswith(OURS)]


def _over(rates: list[float], rival: list[Document]) -> str:
    """A contender's rate over a rival's: the median of the rounds that both have."""
    pairs = [rate / run["rate"] for rate, run in zip(rates, rival, strict=False)]
    return f"{number(_median(pairs))}x"


def _quality(runs: list[Document], key: str) -> str:
    found = [run["quality"][key] for run in runs if run["quality"].get(key) is not None]
    if not found:
        return ""
    low, high = f"{min(found):.4g}", f"{max(found):.4g}"
    return f"{key} {low}" if low == high else f"{key} {low} to {high}"


def _thousands(value: float) -> str:
    return f"{value / 1e3:,.0f} k" if value >= 1e4 else f"{value / 1e3:.1f} k"


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _short(reason: str) -> str:
    """A reason's first and last line."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return lines[0] if len(lines) < 2 else f"{lines[0]} ... {lines[-1]}"


def _table(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
