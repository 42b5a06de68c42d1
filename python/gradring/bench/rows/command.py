"""Runs `gradring bench pull|push|train` from its command line to its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradring.bench import plot
from gradring.bench.rows import bounds, report
from gradring.bench.rows.ids import zipf_ids
from gradring.bench.rows.options import Options, parse
from gradring.bench.starts import role_in_group
from gradring.commands.output_files import write_json, writing
from gradring.commands.own_modules import module_command
from gradring.errors import InvalidArgument
from gradring.launch import processes


def run(argv: Sequence[str]) -> int:
    """Measure and report.

    Returns:
        0; 1 where rows were wrong; the job's exit code where it failed.

    Raises:
        InvalidArgument: The command line makes no sense, or a launcher has started this as one of
            several ranks: each would measure a job of its own, beside the others'.
    """
    role = role_in_group(os.environ)
    if role is not None and role.world_size > 1:
        raise InvalidArgument(
            f"gradring bench {argv[0]} starts its workers and servers itself, on this machine: "
            "call it by itself, with -n and --servers, not as ranks of a launcher"
        )
    options = parse(argv)
    if options.plot is not None:
        plot.require(options.plot)
    bounds.require_memory(options)
    limits = _bounds(options)
    with tempfile.TemporaryDirectory(prefix="gradring-bench-") as folder:
        answers = Path(folder) / "workers.json"
        # What the job says beside figures is no part of the report.
        code = _carry_out(_job(options, answers))
        if code != 0:
            return code
        workers: list[dict[str, Any]] = json.loads(answers.read_text())
    document = report.make_document(options, argv, limits, workers)
    if options.json == "-":
        print(json.dumps(document, indent=1))
    else:
        report.show(document)
    if options.json not in (None, "-"):
        write_json(str(options.json), document)
    if options.plot is not None:
        with writing(options.plot) as file:
            report.draw(document, file)
    if document["wrong"]:
        print(f"gradring bench: {document['wrong']} values are WRONG", file=sys.stderr)
    return 1 if document["wrong"] else 0


def _carry_out(job: list[str]) -> int:
    """Run the job, and end it with us, however we end."""
    # Not in our group: Ctrl-C would reach it twice, through the terminal and through us.
    ends_with_us = processes.in_child(os.getpid(), None)
    with subprocess.Popen(job, stdout=2, preexec_fn=ends_with_us) as running:  # noqa: PLW1509
        try:
            return running.wait()
        except BaseException:
            running.terminate()
            running.wait()
            raise


def _bounds(options: Options) -> dict[str, float]:
    ids = zipf_ids(options.rows, options.ids, options.zipf, 0)
    is_tcp = options.transport == "tcp"
    return {
        **bounds.table_speed(options),
        "distinct": np.unique(ids).size / ids.size,
        "link_gbs": bounds.stream_gbs() if is_tcp else bounds.copy_gbs(),
    }


def _job(options: Options, answers: Path) -> list[str]:
    arguments = [
        "run", "--quiet", "-n", str(options.workers), "--servers", str(options.servers),
        "--server-options", f"--threads {options.threads}",
    ]  # fmt: skip
    if options.transport != "auto":
        arguments += ["--transport", options.transport]
    program = module_command("gradring.bench.rows.worker", options.to_text(), str(answers))
    return [*module_command("gradring", *arguments), *program]
