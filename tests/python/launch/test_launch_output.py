"""What ranks write: lines stay whole, and a bar is shown at the bottom of a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradring.errors import ProtocolError
from gradring.launch import agent
from gradring.launch.children import STDERR, STDOUT
from gradring.launch.hosts import HostPlan
from gradring.launch.link import AgentLink, FrameReader
from gradring.launch.options import Options
from gradring.launch.output import LINE_BYTES_MAX, LineSplitter, RankOutput
from gradring.launch.screen import Screen


@given(st.lists(st.binary(max_size=8)))
def test_lines_do_not_depend_on_how_they_are_cut(pieces: list[bytes]) -> None:
    whole, cut = LineSplitter(), LineSplitter()
    together = whole.feed(b"".join(pieces)) + whole.finish()
    apart = [line for piece in pieces for line in cut.feed(piece)] + cut.finish()
    assert apart == together


def test_of_overwritten_text_the_last_state_is_kept() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"\r 10%\r 50%") == []
    assert splitter.bar == b" 50%"
    assert splitter.feed(b"\r100%\r\nnext\r") == [b"100%"]
    assert splitter.feed(b"\n") == [b"next"]


def test_a_line_without_end_is_cut_at_the_limit() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"x" * LINE_BYTES_MAX) == []
    assert splitter.feed(b"x") == [b"x" * (LINE_BYTES_MAX + 1)]


def test_a_failed_ranks_last_errors_are_shown_again_and_no_more() -> None:
    out, err = io.BytesIO(), io.BytesIO()
    output = RankOutput(Screen(out, err, terminals=frozenset(), has_colour=False), has_prefix=True)
    output.take(3, 1, b"not an error\n")
    output.take(3, 2, b"".join(b"%d\n" % i for i in range(100)) + b"unended")
    output.finish(3)
    assert out.getvalue() == b"[3] not an error\n"
    before = err.getvalue()
    output.repeat_last_errors(0)
    assert err.getvalue() == before
    output.repeat_last_errors(3)
    heading, *again = err.getvalue()[len(before) :].splitlines()
    assert heading == b"gradring: the last lines of rank 3's standard error:"
    assert again == [b"    %d" % i for i in range(89, 100)] + [b"    unended"]


def test_frames_do_not_depend_on_how_they_are_cut_and_chatter_before_them_is_dropped() -> None:
    frames = [(STDOUT, 0, b"a\nb"), (STDERR, 7, b""), (agent.EVENT, 0, b"{}")]
    stream = b"Welcome!\n" + agent.GREETING
    stream += b"".join(agent.HEADER.pack(k, r, len(p)) + p for k, r, p in frames)
    for size in (1, 2, 5, len(stream)):
        reader = FrameReader()
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        got = [(f.kind, f.number, f.payload) for piece in pieces for f in reader.feed(piece)]
        assert got == frames


@pytest.mark.parametrize(
    "stream",
    [
        b"x" * 70_000,
        agent.GREETING + b"?" + bytes(8),
        agent.GREETING + agent.HEADER.pack(b"o", 0, 1 << 30),
    ],
    ids=["no agent", "unknown kind", "too long"],
)
def test_bytes_of_no_agent_are_refused(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(FrameReader().feed(stream))


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_an_agent_of_another_version_is_told_as_such(cut: int) -> None:
    stream = b"Welcome!\ngradring-agent 17\n" + agent.HEADER.pack(b"j", 0, 2) + b"{}"
    pieces = [stream[i : i + cut] for i in range(0, len(stream), cut)]
    reader = FrameReader()
    with pytest.raises(ProtocolError, match=r"says 'gradring-agent 17', the one here 'gradring-"):
        _ = [frame for piece in pieces for frame in reader.feed(piece)]


def run_in_terminal(program: str, tmp_path: Path, *awaited: str, **environ: str) -> str:
    """Run two ranks with a terminal for standard output and error; return all that was drawn.

    Once every pattern in `awaited` was drawn, the program gets a byte through the named pipe whose
    path is in GATE.
    """
    gate_path = tmp_path / "gate"
    os.mkfifo(gate_path)
    gate = os.open(gate_path, os.O_RDWR)
    script = tmp_path / "program.py"
    script.write_text(program)
    master, slave = pty.openpty()
    dropped = ("NO_COLOR", "COLUMNS")
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    process = subprocess.Popen(
        [sys.executable, "-m", "gradring", "run", "-n", "2", str(script)],
        stdout=slave,
        stderr=slave,
        env={**inherited, "TERM": "xterm", "GATE": str(gate_path), **environ},
    )
    os.close(slave)
    drawn = b""
    is_open = False
    try:
        while True:
            if not is_open and all(re.search(p, drawn.decode(errors="replace")) for p in awaited):
                is_open = os.write(gate, b".") == 1
            if not (data := os.read(master, 4096)):
                break
            drawn += data
    except OSError:  # How Linux tells that the other end has gone.
        pass
    finally:
        os.close(master)
        os.close(gate)
    assert process.wait() == 0
    return drawn.decode()


# Rank 0 draws once rank 1 has written, and rank 1 writes again once rank 0 has drawn; the first
# state stays until the gate opens, or a launcher that is busy elsewhere would never draw it.
BAR = """
import os, socket
host, port = os.environ["GRADRING_RENDEZVOUS"].split(":")
if os.environ["GRADRING_RANK"] == "0":
    peer = socket.socket(fileno=int(os.environ["GRADRING_LISTEN_FD"])).accept()[0]
    for percent in (10, 50, 100):
        os.write(2, b"\\rtrain %d%%" % percent)
        if percent == 10: open(os.environ["GATE"], "rb", buffering=0).read(1)
        peer.send(b".")
        peer.recv(1)
    os.write(2, b"\\n")
else:
    peer = socket.create_connection((host, int(port)))
    for i in range(3):
        peer.recv(1)
        print("line", i, flush=True)
        peer.send(b".")
"""


def visible(drawn: str) -> list[str]:
    """Return the lines that stand on the terminal in the end."""
    text = re.sub("\x1b\\[\\d+m", "", drawn).replace("\r\n", "\n")
    return [line.rpartition("\r")[2].replace("\x1b[K", "") for line in text.split("\n")]


def test_a_bar_stays_below_the_lines_and_its_last_state_remains(tmp_path: Path) -> None:
    # Both are drawn while it lasts.
    early = ("\x1b\\[36m\\[0\\]\x1b\\[0m train 10%", r"2 of 2 ranks running, \d+:\d\d")
    drawn = run_in_terminal(BAR, tmp_path, *early)
    lines = [line for line in visible(drawn) if line]
    assert sorted(lines) == ["[0] train 100%", "[1] line 0", "[1] line 1", "[1] line 2"]
    assert [line for line in lines if line.startswith("[1]")] == [f"[1] line {i}" for i in range(3)]
    assert all(re.search(pattern, drawn) for pattern in early)


def test_no_color_is_respected_and_a_dumb_terminal_gets_lines_only(tmp_path: Path) -> None:
    for name, value, unwanted in (("NO_COLOR", "1", "\x1b[36m"), ("TERM", "dumb", "\x1b")):
        (own := tmp_path / name).mkdir()
        assert unwanted not in run_in_terminal(BAR, own, **{name: value})


def test_ranks_are_told_the_width_that_is_left_beside_the_prefix(tmp_path: Path) -> None:
    program = "import os; print(os.environ['COLUMNS'])"
    drawn = run_in_terminal(program, tmp_path)
    assert "\x1b[0m 74" in drawn  # A new terminal says 0 columns, which is taken for 80.


def test_what_ssh_complains_is_told_by_whole_lines() -> None:
    link = AgentLink(HostPlan("red", (0,), is_here=False), Options(command=(), ssh="true"))
    assert link.complain(b"no ro") == []
    assert link.complain(b"ute\r\nto r") == ["no route"]
    assert link.complain(b"ed\n") == ["to red"]
    assert link.complain(b"bye") == []
    assert link.last_complaints() == ["bye"]
    link.close(timeout=60)
