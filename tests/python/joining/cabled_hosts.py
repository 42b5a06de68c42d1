"""Two hosts joined by a cable, near and far: two networks of one machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

# Runs in a network of its own, the near host's, and joins it by a cable to that of another process.
# A command runs on the far host with `far` in front of it. The ends are called "near" and "far".
_CABLE = """
import json, os, subprocess, sys

# It says a word once it has a network of its own.
apart = ["unshare", "--net", "--", "sh", "-c", "echo; exec cat"]
other = subprocess.Popen(apart, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
other.stdout.readline()
far = ["nsenter", f"--target={other.pid}", "--net", "--"]
cable = ["link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(other.pid)]
subprocess.run(["ip", *cable], check=True)
for inside, name, number in (([], "near", 1), (far, "far", 2)):
    for words in (
        ["link", "set", "lo", "up"],
        ["link", "set", name, "addrgenmode", "none"],
        ["link", "set", name, "up"],
        ["address", "add", f"10.8.8.{number}/24", "dev", name],
        ["address", "add", f"fe80::{number}/64", "dev", name, "nodad"],
    ):
        subprocess.run([*inside, "ip", *words], check=True)
"""
_END = """
other.stdin.close()
other.wait()
"""


def on_cabled_hosts(program: str, *arguments: str, **environ: str) -> Any:
    """Run a program on the near host, and return the JSON that it prints.

    It finds `far`, which puts a command on the far host, and json, os, subprocess and sys.
    """
    if shutil.which("ip") is None:
        pytest.skip("no ip here (iproute2)")
    alone = ["unshare", "--net", "--"]
    try:
        subprocess.run([*alone, "true"], check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this process may not have a network of its own: {error}")
    run = subprocess.run(
        [*alone, sys.executable, "-c", _CABLE + program + _END, *arguments],
        capture_output=True, text=True, timeout=50, env={**os.environ, **environ}, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
