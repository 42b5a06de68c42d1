"""The gradring command, its settings and its errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from gradring.cli import main
from gradring.errors import (
    Closed,
    DeviceError,
    Error,
    InternalError,
    InvalidArgument,
    PeerLost,
    ProtocolError,
    TimedOut,
)
from gradring.launch import job
from gradring.launch.options import Options
from gradring.settings.config import VARIABLES, Settings

ROOT = Path(__file__).parents[3]


def test_the_help_of_run_says_units_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for option, words in {
        "--timeout S": "seconds without progress that fail a call (30)",
        "--grace S": "seconds from SIGTERM to SIGKILL (5)",
        "--start-timeout S": "seconds that hosts may take to start ranks (30)",
    }.items():
        assert f"{option} {words}" in shown


def test_no_command_prints_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in ("run", "doctor", "bench", "demo", "serve", "version"))


@pytest.mark.parametrize("argv", [["version"], ["--version"]])
def test_the_version_is_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert re.fullmatch(r"gradring .+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("name", "home"),
    [("bench", "gradring.bench"), ("demo", "gradring.demo"), ("serve", "gradring.ps.command")],
)
def test_delegated_commands_get_all_their_arguments(
    name: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def command(argv: list[str]) -> int:
        seen.append(argv)
        return 3

    module = types.ModuleType(home)
    module.main = command  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home, module)
    assert main([name, "all_reduce", "--json", "-h"]) == 3
    assert seen == [["all_reduce", "--json", "-h"]]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "train.py"], "say how many ranks to start"),
        (["run", "-n", "2"], "say what to run"),
        (["run", "-n", "2", "no-such.py"], "no-such.py: no such file"),
        (["run", "-n", "2", "--timeout", "0", "true"], "not a positive number of seconds"),
        (["run", "-np", "0", "true"], "-n 0: a job has at least one rank"),
        (["run", "--hosts", "a:4,b:4", "true"], "a:4,b:4: no such file; a hosts file has a line"),
        (["run", "-n", "2", "-m", "pkg", "x"], "as in a shell: gradring run -n 2 python -m pkg"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("gradring: ")
    assert words in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--nope", "-n", "1", "true"], ["doctor", "--nope"], ["version", "--nope"],
        ["trace", "merge", "folder", "-o", "file", "--nope"], ["tune", "--nope"],
    ],
    ids=lambda argv: argv[0],
)  # fmt: skip
def test_an_unknown_option_is_told_with_the_usage_of_its_own_command(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    shown = capsys.readouterr().err
    assert "unrecognized arguments: --nope" in shown
    assert shown.startswith(f"usage: gradring {argv[0]}")


def test_options_after_the_program_are_the_programs(capfd: pytest.CaptureFixture[str]) -> None:
    program = ["--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "-n", "9", "--quiet"]
    assert main(["run", "-n", "1", *program]) == 0
    assert capfd.readouterr().out == "[0] ['-n', '9', '--quiet']\n"


@pytest.mark.parametrize("text", ["--threads=2", "--threads 2", "-x"])
def test_options_for_servers_may_be_one_word_that_begins_with_a_dash(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Options] = []
    monkeypatch.setattr(job, "run", lambda options: seen.append(options) or 0)
    asked = ["--quiet", "-n", "2", "--server-options", text, "--servers", "1"]
    program = ["train.py", "--server-options", "--lr"]
    assert main(["run", *asked, *program]) == 0
    assert (seen[0].server_options, seen[0].servers) == (text, 1)
    assert seen[0].command == tuple(program), "what follows the program is the program's"


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["serve", "--log", ""], "--log"),
        (["run", "-n", "1", "--servers", "1", "--server-log", "", "true"], "--server-log"),
    ],
)
def test_a_log_without_a_name_is_not_the_working_directory(
    argv: list[str], option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-m", "gradring", *argv],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert f"argument {option}: invalid folder value: ''" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_server_options_without_a_value_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "-n", "2", "--servers", "1", "--server-options", "--quiet", "train.py"])
    assert "--server-options: expected one argument" in capsys.readouterr().err


def test_python_dash_m_is_the_command() -> None:
    argv = [sys.executable, "-m", "gradring", "run", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "gradring run -n N [options] train.py" in done.stdout


SHADOWED = ("types", "random", "json", "socket", "select", "queue", "signal")


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--hosts", "hosts", "--ssh", "./ssh", "true"],
        ["bench", "barrier", "--rounds", "5", "--seconds", "0.01"],
        ["bench", "pull", "--rows", "1000", "--ids", "10", "--dim", "4", "--seconds", "0.1"],
        ["tune", "--quick", "-n", "2", "--transport", "shm"],
    ],
    ids=["run", "bench", "rows", "tune"],
)
def test_files_in_the_working_directory_are_not_taken_for_the_standard_library(
    argv: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__file__} was imported')\n")
    (tmp_path / "hosts").write_text("elsewhere\n")
    (tmp_path / "ssh").write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    code = main(argv)
    assert (code, "was imported" in capfd.readouterr().err) == (0, False)


# Ctrl-C comes while a module is looked for. CAUGHT: who imports it makes an error of its own.
INTERRUPTED = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name != {module!r}:
            return
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("what NumPy says") if {is_caught} else KeyboardInterrupt

sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["bench", "all_reduce", "-n", "1", "--sizes", "4"]
runpy.run_module("gradring", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("module", "is_caught", "status"),
    [
        ("argparse", False, -signal.SIGINT),  # Before there is anything to clear away.
        ("gradring.bench", False, 128 + signal.SIGINT),
        ("numpy", False, 128 + signal.SIGINT),
        ("numpy", True, 128 + signal.SIGINT),
    ],
)
def test_ctrl_c_while_the_command_is_loaded_shows_no_traceback(
    module: str, is_caught: bool, status: int
) -> None:
    program = INTERRUPTED.format(module=module, is_caught=is_caught)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", "gradring", "doctor", "--json"]
    done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_every_variable_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    listed = set(re.findall(r"^\| `(GRADRING_\w+)`", text, re.MULTILINE))
    assert listed == set(VARIABLES)


def test_settings_come_from_arguments_then_variables_then_defaults() -> None:
    environ = {"GRADRING_TRANSPORT": "tcp", "GRADRING_TIMEOUT": "5", "GRADRING_INTERFACE": "eth0"}
    assert Settings.from_environ({}) == Settings()
    assert Settings.from_environ(environ) == Settings("tcp", timeout=5.0, interface="eth0")
    settings = Settings.from_environ(environ, transport="shm", timeout=1, interface="10.0.0.1/8")
    assert settings == Settings("shm", timeout=1.0, interface="10.0.0.0/8")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "9e9", "soon"])
def test_a_timeout_that_would_never_or_always_pass_is_refused(text: str) -> None:
    for name in ("GRADRING_TIMEOUT", "GRADRING_HEARTBEAT_TIMEOUT"):
        words = rf"{name}='{text}' is not a positive number of seconds, at most 1e\+09"
        with pytest.raises(InvalidArgument, match=words):
            Settings.from_environ({name: text})


def test_errors_are_also_what_a_program_without_us_would_catch() -> None:
    also = {
        InvalidArgument: ValueError,
        PeerLost: ConnectionError,
        TimedOut: TimeoutError,
        ProtocolError: ConnectionError,
        DeviceError: RuntimeError,
        Closed: RuntimeError,
        InternalError: RuntimeError,
    }
    assert all(issubclass(kind, Error) and issubclass(kind, base) for kind, base in also.items())


def test_a_lost_peer_is_known_by_its_rank_also_after_a_pickle() -> None:
    import pickle

    error = PeerLost("rank 3 closed the connection", 3)
    again = pickle.loads(pickle.dumps(error))
    assert (error.rank, again.rank, str(again)) == (3, 3, "rank 3 closed the connection")
