"""How commands end from outside: nothing stays behind, no traceback, and an exit code that says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradring as gr
from gradring.cli import main
from gradring.commands.output_files import require_writable
from gradring.errors import InvalidArgument
from launcher_runs import wait_for_end
from waiting import readable

COMMAND = [sys.executable, "-m", "gradring"]


@contextlib.contextmanager
def running(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command whose temporary files go into a folder of their own."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_descendants(process: subprocess.Popen[bytes], word: bytes, count: int) -> list[int]:
    """Look until so many processes below have the word in their command line; return all below."""
    while True:
        assert process.poll() is None, "it ended by itself"
        below = [process.pid]
        for parent in below:  # It grows meanwhile.
            for path in Path(f"/proc/{parent}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    below += map(int, path.read_text().split())
        hits = 0
        for each in below:
            with contextlib.suppress(OSError):
                hits += word in Path(f"/proc/{each}/cmdline").read_bytes()
        if hits >= count:
            return below[1:]
        readable(seconds=0.01)


LONG_RUNS = [
    ("bench", "pull", "--rows", "1000", "--ids", "100", "--dim", "4", "--seconds", "1000"),
    ("bench", "all_reduce", "--sizes", "4", "--rounds", "1000000", "--seconds", "1000"),
    ("tune", "-n", "2"),
]
RANKS = {
    ("bench", "pull"): b"gradring.bench.rows.worker",
    ("bench", "all_reduce"): b"gradring.bench.peers",
    ("tune", "-n"): b"gradring.tune.worker",
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("arguments", LONG_RUNS, ids=[run[0] + "-" + run[1] for run in LONG_RUNS])
def test_a_signal_ends_what_a_command_has_started_and_clears_up(
    tmp_path: Path, arguments: tuple[str, ...], number: signal.Signals
) -> None:
    with running(tmp_path, *arguments) as process:
        # Those that start a rank have its name among their arguments too.
        below = wait_for_descendants(process, RANKS[arguments[:2]], 2)
        process.send_signal(number)
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        assert b"Traceback (most recent call last):" not in lines  # A rank's has its number before.
        assert process.wait() == 128 + number
    for pid in below:
        wait_for_end(pid)
    assert not list(tmp_path.glob("gradring-*"))


def test_kill_9_of_a_bench_of_rows_ends_its_job(tmp_path: Path) -> None:
    with running(tmp_path, *LONG_RUNS[0]) as process:
        below = wait_for_descendants(process, b"rows.worker", 2)
        process.kill()
        for pid in below:
            wait_for_end(pid)


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--json"], ["version"]])
def test_a_full_disk_behind_the_output_is_told(arguments: list[str]) -> None:
    for buffering in ("", "1"):
        with Path("/dev/full").open("wb") as full:
            ended = subprocess.run(
                [*COMMAND, *arguments],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                env={**os.environ, "PYTHONUNBUFFERED": buffering},
            )
        told = "gradring: cannot write the output: No space left on device\n"
        assert (ended.stderr, ended.returncode) == (told, 1)


@pytest.mark.parametrize("arguments", [["run", "-n", "1", "true"], ["doctor", "--json"]])
def test_a_closed_output_is_no_crash(arguments: list[str]) -> None:
    closing = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, *arguments]
    ended = subprocess.run(closing, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in ended.stderr
    assert ended.returncode in (0, 1)  # The doctor may have found something.


def test_the_doctor_shows_names_of_any_bytes() -> None:
    environ = {**os.environ, "GRADRING_TRACE": os.fsdecode(b"/tmp/caf\xe9")}
    ended = subprocess.run([*COMMAND, "doctor"], capture_output=True, env=environ, check=False)
    assert b"/tmp/caf\\udce9" in ended.stdout
    assert ended.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["bench", "all_reduce"], "--json"),
        (["bench", "all_reduce"], "--plot"),
        (["bench", "pull"], "--json"),
        (["bench", "pull"], "--plot"),
        (["bench", "kernels"], "--json"),
        (["tune"], "--out"),
        (["demo"], "--json"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    arguments: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, option, str(tmp_path / "none" / "out.png")]) == 2
    shown = capsys.readouterr()
    assert f"{option} {tmp_path}/none/out.png: cannot be written: No such file" in shown.err
    assert shown.out == ""


def test_looking_whether_a_file_can_be_written_leaves_it_as_it_is(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("before")
    link = tmp_path / "link.json"
    link.symlink_to("not-yet.json")
    for file in (kept, tmp_path / "new.json", link):
        require_writable(file, "--out")
    assert kept.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == [kept, link]


def test_a_pipe_may_be_named_by_its_number() -> None:
    read, write = os.pipe()
    require_writable(f"/dev/fd/{write}", "--json")
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)


def test_two_processes_may_look_whether_one_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def second(file: Path, *, missing_ok: bool = False) -> None:
        unlink(file)  # By the first one.
        unlink(file, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", second)
    require_writable(tmp_path / "new.json", "--out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "option"),
    [(["bench", "all_reduce"], "--json"), (["bench", "all_reduce"], "--plot"), (["tune"], "--out")],
)
def test_only_the_rank_that_writes_a_file_looks_whether_it_can(
    command: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    joins: list[str] = []

    def join(**_: object) -> None:
        joins.append(os.environ["GRADRING_RANK"])
        raise InvalidArgument("nobody else is here")

    monkeypatch.setattr(gr, "init", join)
    monkeypatch.setenv("GRADRING_WORLD_SIZE", "2")
    monkeypatch.setenv("GRADRING_RENDEZVOUS", "127.0.0.1:9")
    for rank in ("0", "1"):
        monkeypatch.setenv("GRADRING_RANK", rank)
        assert main([*command, option, str(tmp_path / "none" / "out.png")]) == 2
    assert joins == ["1"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["bench", "all_reduce", "--seconds", "inf"], "--seconds must be positive"),
        (["bench", "all_reduce", "-n", "0"], "-n 0: not a whole number from 1 to 16384"),
        (["bench", "all_reduce", "--sizes", "9" * 5000], "is no size"),
        (["bench", "gather", "barrier", "--algorithm", "ring"], "gather, barrier cannot be told"),
        (["bench", "barrier", "--plot", "x.png"], "a barrier has no sizes to draw over"),
        (["bench", "all_reduce", "--plot", "x.xyz"], "matplotlib draws no .xyz"),
        (["bench", "pull", "--seconds", "inf"], "--seconds must be positive"),
        (["bench", "pull", "--zipf", "inf"], "--zipf not negative, both finite"),
        (["bench", "pull", "--rows", "9" * 5000], "not a count"),
        (["tune", "-n", "0"], "it takes 2 ranks to have a link"),
        (["tune", "-n", "99999999999"], "not a whole number from 2 to 16384"),
        (["demo", "--seed", "-1"], "--seed -1: not a number from 0"),
        (["doctor", "--ranks", "99999999999999999999"], "not a whole number from 1 to 16384"),
        (["doctor", "--job", "²"], "no such folder"),
        (["doctor", "--job", ""], "--job is empty"),
        (["doctor", "--job", "9" * 5000], "no such folder"),
        (["run", "-n", "1", "--timeout", "nan", "true"], "not a positive number of seconds"),
        (["run", "-n", "1", "--grace", "inf", "true"], "--grace inf: not a number of seconds"),
    ],
)
def test_numbers_that_make_no_sense_are_told_in_one_line(
    argv: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRADRING_SECRET", raising=False)
    assert main(argv) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1


def test_sizes_beyond_any_memory_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--size", "9" * 30])
    assert ended.value.code == 2
    assert "is no size" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    [
        {"world_size": 10**18},
        {"world_size": -1},
        {"rank": -1},
        {"rank": 2},
        {"now": 10**400},
        {"communicators": [{"id": "01"}]},
    ],
)
def test_a_damaged_record_is_refused_in_one_line(
    damage: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {"op": "barrier", "seq": 1, "state": "finished", "begin": 1, "end": 2}
    group = {"id": "01", "ranks": [0, 1], "is_closed": False, "failure": None}
    record = {
        "format": "gradring-record", "version": 1, "wall": 0, "now": 3, "rank": 0, "world_size": 2,
        "job": "x", "failure": None, "spans": [],
        "communicators": [{**group, "operations": [ended], "messages": []}],
    }  # fmt: skip
    (tmp_path / "rank-0.json").write_text(json.dumps(record))
    assert main(["doctor", "--job", str(tmp_path), "--json"]) == 1
    assert "left no record" in capsys.readouterr().out
    (tmp_path / "rank-0.json").write_text(json.dumps({**record, **damage}))
    assert main(["doctor", "--job", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    (tmp_path / "rank-0.json").write_text(json.dumps({**record, "failure": float("inf")}))
    assert main(["doctor", "--job", str(tmp_path), "--json"]) == 2  # It would not be JSON.


@pytest.mark.parametrize(
    "damage",
    [
        {"world_size": 10**18},
        {"rank": [0]},
        {"rank": 2},
        {"clock": 7},
        {"clock": [{"at": 10**400, "offset": 0, "error": 0}]},
        {"clock": [{"at": 0, "offset": float("inf"), "error": 0}]},
    ],
)
def test_a_damaged_trace_is_refused_in_one_line(
    damage: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"format": "gradring-trace", "version": 1, "rank": 0, "world_size": 2, "job": "x",
             "lost": 0, "clock": []}  # fmt: skip
    event = {"ph": "X", "name": "barrier", "ts": 1.0, "dur": 1.0, "pid": 0, "tid": 0}
    merge = ["trace", "merge", str(tmp_path), "-o", str(tmp_path / "merged")]
    for extra, code in (({}, 0), (damage, 2)):
        (tmp_path / "merged").unlink(missing_ok=True)
        text = json.dumps({"otherData": {**other, **extra}, "traceEvents": [event]})
        (tmp_path / "rank-0.trace.json").write_text(text)
        assert main(merge) == code
        assert (tmp_path / "merged").exists() == (code == 0)
        assert capsys.readouterr().err.count("\n") <= 1


def test_records_and_traces_that_lack_fields_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"format": "gradring-record", "version": 1, "wall": 0}
    (tmp_path / "rank-0.json").write_text(json.dumps(record))
    assert main(["doctor", "--job", str(tmp_path)]) == 2
    assert "rank-0.json is no record of this version" in capsys.readouterr().err
    trace = {"otherData": {"format": "gradring-trace", "version": 1, "rank": 0}, "traceEvents": 3}
    (tmp_path / "rank-0.trace.json").write_text(json.dumps(trace))
    assert main(["trace", "merge", str(tmp_path), "-o", str(tmp_path / "merged")]) == 2
    assert "rank-0.trace.json is no trace" in capsys.readouterr().err
