"""Files that commands read and write: none is destroyed, and what fails is told in one line."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradring as gr
from gradring.bench import command as bench_command
from gradring.cli import main
from gradring.commands import output_files
from gradring.commands.output_files import write_whole
from gradring.settings import cost_profile
from gradring.settings.cost_profile import Costs, Measured, Profile

COMMAND = [sys.executable, "-m", "gradring"]
QUICK_TUNE = ["tune", "--quick", "-n", "2", "--transport", "shm"]

PROFILE = Profile({"tcp": Measured(Costs(1.0, 1.0, 1.0, 1.0), 2, 1, 0.1)})


def test_a_profile_is_written_to_where_a_symlink_leads(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "target.json"
    link = tmp_path / "link.json"
    link.symlink_to("elsewhere/target.json")
    for _ in range(2):  # The first time it leads to nothing yet.
        cost_profile.save(PROFILE, link)
        assert link.is_symlink()
        assert cost_profile.load(target) == PROFILE
    assert sorted(tmp_path.rglob("*")) == [target.parent, target, link]


def test_a_profile_goes_through_a_pipe_that_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    cost_profile.save(PROFILE, pipe)
    reader.join(60)
    assert pipe.is_fifo()
    (tmp_path / "copy.json").write_text(read[0])
    assert cost_profile.load(tmp_path / "copy.json") == PROFILE


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that holds "before", on a disk that is full from now on."""
    file = tmp_path / "kept.json"
    file.write_text("before")

    def write_half(path: Path, text: str) -> int:
        path.write_bytes(text.encode()[: len(text) // 2])
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", write_half)
    return file


def test_a_file_that_fails_half_way_stays_what_it_was(kept: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        write_whole(kept, "twice as much")
    assert kept.read_text() == "before"
    assert list(kept.parent.iterdir()) == [kept]


def test_what_an_earlier_bench_has_written_outlives_a_full_disk(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_command.table, "show", lambda _: None)
    options: Any = SimpleNamespace(json=str(kept), plot=None)
    with pytest.raises(output_files.CannotWrite, match=r"kept\.json: No space left"):
        bench_command._finish({"operations": []}, options)
    assert kept.read_text() == "before"


def test_who_may_read_a_file_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    for mode in (0o600, 0o640):
        file.touch()
        if os.geteuid() == 0:
            os.chown(file, 1234, 5678)
        file.chmod(mode)
        before = file.stat()
        write_whole(file, "after")
        after = file.stat()
        assert (after.st_mode, after.st_uid, after.st_gid) == (
            stat.S_IFREG | mode, before.st_uid, before.st_gid,
        )  # fmt: skip


def test_a_file_that_is_standard_output_keeps_what_is_printed_there(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    program = (
        "from gradring.commands.output_files import require_writable, write_whole\n"
        "require_writable('/dev/stdout', '--json', is_replaced=True)\n"
        "print('head'); write_whole('/dev/stdout', '{}\\n'); print('tail')\n"
    )
    with file.open("w") as stdout:
        subprocess.run([sys.executable, "-c", program], stdout=stdout, check=True, timeout=60)
    assert file.read_text() == "head\n{}\ntail\n"


def test_a_profile_that_could_not_be_replaced_is_told_of_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.json"
    file.write_text("before")
    (tmp_path / f"gradring.{os.getpid()}.part").mkdir()  # Nothing new can be made beside it.
    assert main([*QUICK_TUNE, "--out", str(file)]) == 2
    shown = capsys.readouterr()
    assert f"--out {file}: cannot be written: Is a directory" in shown.err
    assert shown.out == ""
    assert file.read_text() == "before"


def test_a_file_that_is_mounted_by_itself_is_written_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my files").mkdir()
    file, mounts = tmp_path / "my files" / "out.json", tmp_path / "mountinfo"
    file.write_text("before")
    escaped = str(file).replace(" ", "\\040")
    mounts.write_text(f"36 35 98:0 / / rw\n37 36 98:0 /out {escaped} rw,noatime - ext4 /dev/x rw\n")
    monkeypatch.setattr(output_files, "_MOUNTS", mounts)
    monkeypatch.setattr(Path, "replace", None)
    output_files.require_writable(file, "--out", is_replaced=True)
    write_whole(file, "after")
    assert file.read_text() == "after"
    assert list(file.parent.iterdir()) == [file]


def test_a_full_disk_under_the_profile_is_told_by_the_files_name(tmp_path: Path) -> None:
    # By a link, so that not even a file that is replaced is one of the system's.
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    ended = subprocess.run(
        [*COMMAND, *QUICK_TUNE, "--out", str(link)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert ended.stderr == f"gradring: cannot write {link}: No space left on device\n"
    assert ended.returncode == 1


def test_tune_whose_reader_has_left_ends_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [*COMMAND, *QUICK_TUNE], stdout=write, stderr=subprocess.PIPE, check=False, timeout=100
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the trace of a world of one."""
    monkeypatch.setenv("GRADRING_TRACE", str(tmp_path / "traces"))
    with gr.init() as comm:
        comm.barrier()
    return tmp_path / "traces"


@pytest.mark.parametrize("name", ["traces/rank-0.trace.json", "traces/rank-7.trace.json", "link"])
def test_a_merge_of_traces_is_written_over_none_of_them(
    traces: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = traces.parent / name
    if name == "link":
        output.symlink_to(traces / "rank-0.trace.json")
    before = (traces / "rank-0.trace.json").read_text()
    assert main(["trace", "merge", str(traces), "-o", str(output)]) == 2
    assert "that is one of the traces to be merged; name another" in capsys.readouterr().err
    assert [path.name for path in traces.iterdir()] == ["rank-0.trace.json"]
    assert (traces / "rank-0.trace.json").read_text() == before


def test_a_merged_trace_goes_to_standard_output(
    traces: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(traces.parent)
    assert main(["trace", "merge", "traces", "-o", "-"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["otherData"]["format"] == "gradring-trace-merged"
    assert "of 1 ranks" in shown.err
    assert list(traces.parent.iterdir()) == [traces]


def test_a_full_disk_under_a_merged_trace_is_no_wrong_command_line(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = traces.parent / "full"
    link.symlink_to("/dev/full")
    assert main(["trace", "merge", str(traces), "-o", str(link)]) == 1
    assert capsys.readouterr().err == f"gradring: cannot write {link}: No space left on device\n"


LONG_NAME = "x" * 300


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["serve", "--log", LONG_NAME], f"{LONG_NAME}/loading-00000-of-00001: File name too long"),
        (["run", "-n", "1", f"{LONG_NAME}.py"], f"gradring: {LONG_NAME}.py: File name too long"),
        (["bench", "barrier", "--json", LONG_NAME], "cannot be written: File name too long"),
        (["tune", "--out", LONG_NAME], "cannot be written: File name too long"),
        (["tune", "--out", "-"], "--out -: a profile is a file; ./- is one of that name"),
        (["trace", "merge", "no-folder", "-o", "x"], "no-folder: cannot be read: Not a directory"),
        (["doctor", "--job", "records"], "rank-0.json: cannot be read: Is a directory"),
    ],
)
def test_a_path_that_the_system_refuses_is_told_in_one_line(
    argv: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "no-folder").write_text("")
    (tmp_path / "records" / "rank-0.json").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADRING_SECRET", "of a test, and long enough for one")
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")


@pytest.mark.parametrize("arguments", [["doctor", "--job"], ["trace", "merge", "-o", "x"]])
def test_an_unreadable_folder_is_not_taken_for_an_empty_one(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(path: Path) -> None:  # Nothing is forbidden to root.
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "iterdir", refuse)
    assert main([*arguments, "folder"]) == 2
    assert capsys.readouterr().err == "gradring: folder: cannot be read: Permission denied\n"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["doctor", "--job"], "rank-0.json"), (["trace", "merge", "-o", "x"], "rank-0.trace.json")],
)
def test_json_that_is_nested_too_deeply_is_refused_by_name(
    arguments: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("[" * 100_000)
    assert main([*arguments, str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"gradring: {tmp_path / name} is no ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("arguments", [["bench", "barrier"], ["tune", "--quick"]])
def test_a_working_directory_that_was_removed_is_told(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert "there is no working directory any more" in shown
    assert shown.count("\n") == 1


def test_a_limit_of_open_files_in_an_agent_is_told() -> None:
    limited = ["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *COMMAND, "run", "-n", "40", "true"]
    ended = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=60)
    assert "cannot start: [Errno 24] Too many open files" in ended.stderr
    assert "see this host's ulimit -n" in ended.stderr
    assert ended.returncode != 0


def test_a_limit_of_open_files_is_told() -> None:
    limited = ["sh", "-c", 'ulimit -n 8; exec "$@"', "sh", *COMMAND, "run", "-n", "1", "true"]
    ended = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stderr == "gradring: Too many open files (ulimit -n)\n"
    assert ended.returncode == 1
