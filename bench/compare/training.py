"""Trains with every contender in turn, and saves each run's rate and quality when it is done."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from compare import contenders, processes, records
from compare.contenders import QUALITY, Contender, Part
from compare.environments import Environment
from compare.records import Document
from gradring.bench.report import machine_facts

NEEDED = {"word2vec": ("gensim", "paddle", "tf"), "ctr": ("paddle", "tf")}
_TITLES = {
    "word2vec": "Word vectors: words or pairs a second, and what they are worth",
    "ctr": "Click rates: examples a second, and how good the predictions are",
}
_ABOUT = (
    "start-up, reading data and compiling are not timed; "
    "held-out loss: mean of pairs that nobody trained on; analogies: share that comes out right; "
    "test AUC beside the best that is possible; talking: share of its time that the "
    "training thread of a worker spends on others (pull, push, gather, exchange, flush)"
)
_EQUAL = {
    "word2vec": "the same for all: text, subsampling, window and rate (gensim's settings; SGD); "
    "gensim draws five negatives for each pair, ours 32 for a block of 32 words; "
    "on the made stream the pairs' distribution, batch, initial values and rule (Adagrad on the "
    "sum of a batch's losses), but for Paddle async, whose servers apply Adam whatever is asked",
    "ctr": "the same for all: data, batch, network; ours and TensorFlow's: Adam for the network, "
    "Adagrad for rows; Paddle: Adam for both (geo), SGD and its servers' Adam (async)",
}
_DEADLINE = 300.0
_FAILURES = 2  # In a row; then a contender is left out.
# Seconds of a run of each extent, and contenders.
_RUN_SECONDS = {"quick": 11.0, "default": 16.0, "full": 45.0}
_CONTENDERS = {"word2vec": 14, "ctr": 8}


def estimate(what: str, options: argparse.Namespace) -> float:
    """Return about how many seconds it takes."""
    return _rounds(options) * _CONTENDERS[what] * _RUN_SECONDS[options.extent]


def run(what: str, options: argparse.Namespace, found: dict[str, Environment]) -> bool:
    """Measure a workload and save it; returns whether ours ran through."""
    path = options.json / f"{what}.json"
    document: Document = {
        "title": _TITLES[what],
        "command": records.asked_command(),
        "machine": machine_facts(),
        "measured": records.stamp(),
        "about": [f"{options.workers} workers and a server, one thread each", _ABOUT, _EQUAL[what]],
        "versions": {name: found[name].versions for name in NEEDED[what]},
        "missing": {},
        "parts": [],
    }  # fmt: skip
    parts = contenders.parts(what, options, found)
    for part in parts:
        runs: Document = {name: [] for name in part.contenders}
        document["parts"].append({"title": part.title, "unit": part.unit, "runs": runs})
    failures: dict[str, int] = {}
    for number in range(_rounds(options)):
        for part, entry in zip(parts, document["parts"], strict=True):
            for name, contender in part.contenders.items():
                if time.monotonic() > options.until:
                    break
                key = f"{name} ({part.unit})"
                reason = found[contender.environment].reason if contender.environment else ""
                if not reason and failures.get(key, 0) < _FAILURES:
                    outcome, reason = _train(part, contender, options.deadline or _DEADLINE)
                    if not reason:
                        entry["runs"][name].append(outcome)
                        failures[key] = 0
                    print(f"{what} round {number + 1}: {key} {reason or outcome}",
                          file=sys.stderr, flush=True)  # fmt: skip
                if reason:
                    failures[key] = failures.get(key, 0) + 1
                    document["missing"][key] = reason
                records.save(path, document)
    return not any(name.startswith("gradring") for name in document["missing"])


def _rounds(options: argparse.Namespace) -> int:
    return int(options.rounds or 5)


def _train(part: Part, contender: Contender, deadline: float) -> tuple[Document, str]:
    """Run a contender; returns its rate and quality, or why there is none."""
    with tempfile.TemporaryDirectory(prefix="gradring-train-") as folder:
        out = Path(folder) / "out.jsonl"
        command = [str(out) if word == "OUT" else word for word in contender.command]
        ended = processes.run([command], deadline, OMP_NUM_THREADS="1")
        processes.end_strays(folder)
        text = out.read_text() if out.exists() else ended.output
    found = last_json(text, f"{part.unit}/s")
    if found is None:
        return {}, ended.reason or f"it printed no {part.unit}/s"
    quality = {key: found[key] for key in QUALITY if found.get(key) is not None}
    outcome = {"rate": float(found[f"{part.unit}/s"]), "quality": quality}
    outcome["seconds"] = round(ended.seconds, 1)
    if ended.reason:  # After it had said how fast it was.
        outcome["ended"] = ended.reason
    return outcome, ""


def last_json(text: str, key: str) -> dict[str, Any] | None:
    """Return the last line that is JSON and has the key."""
    for line in reversed(text.splitlines()):
        if line.startswith("{") and key in line:
            found: dict[str, Any] = json.loads(line)
            return found
    return None
