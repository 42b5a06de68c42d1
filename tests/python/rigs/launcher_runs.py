"""Starts real launchers on programs given as text, and tells when processes have ended.

What has to have happened is read from pipes, never waited for by the clock. For test_launch.py and
test_launch_hosts.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from waiting import readable

# What every program under test starts with.
LIVE = "import os, signal, socket, subprocess, sys, time\nrank = int(os.environ['GRADRING_RANK'])\n"

FOREVER = "while True: signal.pause()\n"

# Says its name once it runs, then waits for a signal for ever.
WAIT = LIVE + "print('ready', os.getpid(), flush=True)\n" + FOREVER

# As WAIT, but SIGTERM has it say that it saved; at Ctrl-C it says that nothing was.
SAVE_AT_SIGTERM = LIVE + (
    "def save(*_): print('saved', flush=True); sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "try:\n"
    "    print('ready', flush=True)\n"
    "    while True: signal.pause()\n"
    "except KeyboardInterrupt: print('not', flush=True); sys.exit(1)\n"
)

# As WAIT, with a child in its group and one that left for a session of its own.
SPAWN = LIVE + (
    "sleeper = [sys.executable, '-c', 'import signal\\nwhile True: signal.pause()']\n"
    "child = subprocess.Popen(sleeper)\n"
    "stray = subprocess.Popen(sleeper, start_new_session=True)\n"
    "print('ready', os.getpid(), child.pid, stray.pid, flush=True)\n"
)
WITH_GRANDCHILDREN = SPAWN + FOREVER

# The same, but rank 1 fails once the test has opened the gate, a named pipe.
FAIL_AT_GATE = SPAWN + "if rank == 1: open('gate').read(); sys.exit(5)\n" + FOREVER


@dataclass
class Run:
    """A launcher under test."""

    process: subprocess.Popen[str]
    seen: list[str] = field(default_factory=list)

    def until(self, pattern: str, times: int = 1) -> list[re.Match[str]]:
        """Read standard output until the pattern was seen so often."""
        assert self.process.stdout is not None
        found: list[re.Match[str]] = []
        while len(found) < times:
            line = self.process.stdout.readline()
            assert line, f"{pattern!r} was not seen in {self.seen}"
            self.seen.append(line.rstrip("\n"))
            found += re.finditer(pattern, line)
        return found

    def finish(self) -> tuple[int, list[str], str]:
        """Wait for the end: exit code, lines of standard output, standard error."""
        out, err = self.process.communicate(timeout=100)
        return self.process.returncode, [*self.seen, *out.splitlines()], err


def read_error(run: Run, words: str) -> str:
    """Read the launcher's standard error until a line has these words; returns all so far."""
    assert run.process.stderr is not None
    seen = ""
    while words not in seen:
        line = run.process.stderr.readline()
        assert line, f"{words!r} was not said: {seen}"
        seen += line
    return seen


Start = Callable[..., Run]


@contextlib.contextmanager
def launching(directory: Path) -> Iterator[Start]:
    """Start `gradring run` on a program given as text; whatever still runs in the end is killed."""
    runs: list[Run] = []

    def start(program: str, *options: str, environ: dict[str, str] | None = None) -> Run:
        script = directory / "program.py"
        script.write_text(program)
        process = subprocess.Popen(
            [sys.executable, "-m", "gradring", "run", *options, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            env={**os.environ, **(environ or {})},
        )
        runs.append(Run(process))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


def run_patched(patch: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the launcher after some Python has changed it."""
    numbered = arguments if "-n" in arguments else ("-n", "1", *arguments)
    return subprocess.run(patched(patch, *numbered), capture_output=True, text=True, check=False)


def patched(patch: str, *arguments: str) -> list[str]:
    program = f"import os, sys\nfrom gradring import cli\n{patch}sys.exit(cli.main(sys.argv[1:]))\n"
    return [sys.executable, "-c", program, "run", *arguments]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for_end(pid: int) -> None:
    """Return when the process is gone; the test's own timeout is the deadline."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        readable(descriptor)
    finally:
        os.close(descriptor)
