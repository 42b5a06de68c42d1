"""What an agent does about the one before it, and about a connection that is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from subprocess import PIPE

import pytest

from gradring.launch import predecessor
from launcher_runs import is_alive

pytestmark = pytest.mark.timeout(60)

# Has a mark, and a child; then it is frozen.
HOLDER = """
import os, signal, subprocess, sys
from gradring.launch import predecessor, processes
processes.adopt_orphans()
place = predecessor.take_place(sys.argv[1])
sleeper = [sys.executable, "-c", "import signal\\nwhile True: signal.pause()"]
print(subprocess.Popen(sleeper, start_new_session=True).pid, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_an_agent_ends_the_one_before_it_with_all_below_it_also_one_that_is_frozen() -> None:
    mark = f"test-{os.getpid()}"
    argv = [sys.executable, "-c", HOLDER, mark]
    with subprocess.Popen(argv, stdout=PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        _, status = os.waitpid(holder.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with predecessor.take_place(mark):
            assert not is_alive(child)
            assert holder.wait() == -signal.SIGKILL
            with predecessor.take_place(f"{mark}-other"):  # Of another job: nobody's matter.
                pass
    predecessor.take_place(mark).close()


def test_an_agent_whose_output_leads_nowhere_notices_though_nothing_else_is_said() -> None:
    """What it says by itself has its host notice that a connection is dead."""
    soon = "from gradring.launch import agent; agent.BEAT_SECONDS = 0.01; agent.main()"
    with subprocess.Popen([sys.executable, "-c", soon], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        said = b""
        while said.count(b'{"event": "beat"}') < 2:
            said += os.read(process.stdout.fileno(), 1000)
        process.stdout.close()
        assert process.wait() == 0
