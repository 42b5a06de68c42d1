"""Programs of ours in a process that has more descriptors open than select() can count."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, resource, sys
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
while os.open("/dev/null", os.O_RDONLY) < 1100: pass
from gradring.cli import main
sys.exit(main(sys.argv[1:]))
"""
SECRET = "0123456789abcdef" * 2

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(
        -1 < resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048,
        reason="this machine lets no process have so many descriptors",
    ),
]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GRADRING_SECRET": SECRET},
    )


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "all_reduce", "--sizes", "4", "--rounds", "5", "--seconds", "0.1", "-n", "2"),
        ("run", "-n", "2", sys.executable, "-c", "import gradring; gradring.init().barrier()"),
        ("run", "-n", "2", "--servers", "1", sys.executable, "-c", "pass"),
    ],
    ids=["bench", "run", "servers"],
)
def test_a_command_does_its_work(command: tuple[str, ...]) -> None:
    process = start(*command)
    _, err = process.communicate()
    assert process.returncode == 0, err


def test_a_server_serves_until_its_signal() -> None:
    with start("serve") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert re.search(r"server 0 of 1 at \S+,", process.stdout.readline()), process.stderr.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, process.stderr.read()
