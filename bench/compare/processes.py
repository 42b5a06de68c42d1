"""Runs a peer's program with a deadline, and leaves none of its processes behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STEP_SECONDS = 0.05


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        output: Its standard output.
        seconds: How long it took.
        reason: Why it counts as failed; empty if it does not.
    """

    output: str
    seconds: float
    reason: str


def run(commands: Sequence[Sequence[str]], deadline: float, **environ: str) -> Ended:
    """Run programs together; all are ended when one fails or the deadline passes.

    Args:
        commands: One for each program.
        deadline: Seconds.
        environ: On top of this process's own.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        files = [
            [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)] for _ in commands
        ]
        running = [
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True,
                env={**os.environ, **environ},
                # Not a session: that would be a share of the cores for each.
                preexec_fn=os.setpgrp,  # noqa: PLW1509 (safe in any thread)
            )
            for command, (out, err) in zip(commands, files, strict=True)
        ]  # fmt: skip
        try:
            reason = _wait(running, began + deadline, deadline)
        finally:
            for process in running:
                end_group(process)
        seconds = time.monotonic() - began
        texts = []
        for pair in files:
            for file in pair:
                file.seek(0)
            texts.append((pair[0].read(), pair[1].read()))
    if reason:
        reason += ": " + last_lines("\n".join(out + err for out, err in texts), 3)
    return Ended("".join(out for out, _ in texts), seconds, reason)


def _wait(running: list[subprocess.Popen[str]], until: float, deadline: float) -> str:
    while True:
        codes = [process.poll() for process in running]
        failed = [code for code in codes if code]
        if failed:
            return f"it ended with {failed[0]}"
        if None not in codes:
            return ""
        if time.monotonic() > until:
            return f"it was not through after {deadline:g} s and was ended"
        time.sleep(_STEP_SECONDS)


def end_group(process: subprocess.Popen[str]) -> None:
    """End a process that leads a group, and everything in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_strays(mark: str) -> int:
    """End processes whose command line holds a path that only this run uses; returns how many.

    Launchers of MPI put ranks into groups of their own, so that a hung one outlives its launcher.
    """
    ended = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
                ended += 1
    return ended


def last_lines(text: str, count: int) -> str:
    """Return the last lines that say something, as one."""
    return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])
