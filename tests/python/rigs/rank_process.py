"""One rank as a process of its own: carries out lines of Python that a test sends it.

Run by `rank_job.Job` as ``python rank_process.py FD MODULES...``, which imports these and forks a
process for each rank (see forked.py). A command on a rank's socket is one JSON line with the code;
all run in one namespace, which holds ``comm`` after the call of ``join()``. The answer is a JSON
line that says what came of it and when. At the end of the commands the process leaves as any
script does.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

import numpy as np

import gradring as gr
from forked import serve


def describe(error: BaseException | None) -> dict[str, Any]:
    """Put what a test wants to know of an exception into plain values."""
    if error is None:
        return {}
    cause = error.__cause__
    return {
        "error": type(error).__name__,
        "text": str(error),
        "lost": getattr(error, "rank", None),
        "cause": None if cause is None else describe(cause),
    }


def obey(connection: socket.socket) -> None:
    """Run one command after another until there are no more."""
    commands = connection.makefile("r")

    def say(kind: str, **values: Any) -> None:
        line = json.dumps({"kind": kind, "at": time.monotonic(), **values}) + "\n"
        connection.sendall(line.encode())

    namespace: dict[str, Any] = {
        "gr": gr, "np": np, "os": os, "signal": signal, "sys": sys, "threading": threading,
        "time": time, "say": lambda event: say("event", event=event),
    }  # fmt: skip

    def join(**options: Any) -> None:
        namespace["comm"] = gr.init(**options)

    namespace["join"] = join
    for line in commands:
        command = json.loads(line)
        namespace.pop("result", None)
        error: BaseException | None = None
        try:
            # Not the text itself: exec() would have the interpreter die of a caught Ctrl-C later.
            exec(compile(command["code"], "<command>", "exec"), namespace)
        except BaseException as raised:
            if command["is_fatal"]:
                raise
            error = raised
        say("outcome", result=namespace.get("result"), **describe(error))


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    rank = serve(socket.socket(fileno=int(sys.argv[1])))
    if rank is not None:
        obey(rank)
