"""gradring serve: one server process, from its options to its end, and what its log keeps."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gradring as gr
from gradring.cli import main
from gradring.errors import DeviceError, Mismatch, TimedOut
from gradring.ps import checkpoint
from gradring.ps.saved.load_note import LoadNote
from ps_servers import SECRET, connected, join, start_server
from waiting import freeze

Serve = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start `gradring serve` and return it with its address; killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "gradring", "serve", *options],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GRADRING_SECRET": SECRET},
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"server \d+ of \d+ at (\S+),", line)
        assert found, line
        return process, found[1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal(serve: Serve, number: signal.Signals) -> None:
    process, address = serve("--threads", "2")
    with join([address]) as ps:
        ps.sparse_table("t", 2, gr.optim.Sum()).push([1], [[1.0, 2.0]])
        assert len(ps.stats()) == 2
    process.send_signal(number)
    assert process.wait(30) == 0


@pytest.mark.parametrize("fsync", ["none", "always", "20", "50 ms"])
def test_what_was_acknowledged_survives_kill_9_with_a_log(
    serve: Serve, tmp_path: Path, fsync: str
) -> None:
    options = ("--log", str(tmp_path / "log"), "--fsync", fsync)
    process, address = serve(*options)
    ids = np.arange(100)
    with join([address], client=1) as ps:
        table = ps.sparse_table("t", 3, gr.optim.Adam(lr=0.1), init=gr.init.Uniform(1))
        for _ in range(3):
            table.push(ids, np.ones((100, 3), np.float32))
        before = table.pull(ids)
        process.kill()
        process.wait()
        # At the same address the client finds it again and goes on.
        port = address.rsplit(":", 1)[1]
        serve(*options, "--port", port)
        assert (table.pull(ids) == before).all()
        table.push(ids, np.ones((100, 3), np.float32))
        assert not (table.pull(ids) == before).any()


def test_it_begins_with_a_checkpoint_once_and_then_goes_on_from_its_log(
    serve: Serve,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, ids = str(tmp_path / "checkpoint"), np.arange(50)
    with connected(2) as ps:
        ps.sparse_table("t", 2, gr.optim.Sum()).push(ids, np.full((50, 2), 3.0))
        cut = ps.save(url).cut
    options = ("--threads", "3", "--log", str(tmp_path / "log"), "--load", url)
    for expected in (3, 4):  # Started again, what came since the checkpoint is still there.
        process, address = serve(*options)
        with join([address]) as ps:
            table = ps.sparse_table("t", 2, gr.optim.Sum())
            assert (table.pull(ids) == expected).all()
            table.push(ids, np.ones((50, 2)))
        process.kill()
        process.wait()
    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    assert main(["serve", *options[:-1], f"{url}-2"]) == 2
    assert f"began with the checkpoint {url}, not with {url}-2" in capsys.readouterr().err
    note = tmp_path / "log" / "loaded-00000-of-00001"
    assert note.read_text() == f"{url}\n{cut}\n"
    note.rename(tmp_path / "away")
    assert main(["serve", *options]) == 2
    assert "which --load would replace" in capsys.readouterr().err
    (tmp_path / "away").rename(note)
    for snapshot in (tmp_path / "log" / "shard-00001-of-00003").glob("snapshot-*"):
        snapshot.unlink()
    assert main(["serve", *options]) == 2
    assert "shard-00001-of-00003 has no snapshot" in capsys.readouterr().err


def test_a_server_killed_once_it_has_begun_with_a_checkpoint_still_has_it(
    serve: Serve, tmp_path: Path
) -> None:
    url, ids = str(tmp_path / "checkpoint"), np.arange(100_000)
    with connected() as ps:
        ps.sparse_table("t", 64, gr.optim.Sum()).push(ids, np.ones((100_000, 64), np.float32))
        ps.save(url)
    options = ("--threads", "2", "--log", str(tmp_path / "log"), "--load", url)
    for _ in range(2):
        process, address = serve(*options)
        process.kill()
        process.wait()
    process, address = serve(*options)
    with join([address]) as ps:
        assert (ps.sparse_table("t", 64, gr.optim.Sum()).pull(ids) == 1).all()


def test_a_server_that_goes_on_from_its_log_still_tells_what_that_began_with(
    serve: Serve, tmp_path: Path
) -> None:
    url = str(tmp_path / "checkpoint")
    with connected() as ps:
        cut = ps.save(url).cut
    options = ("--servers", "2", "--log", str(tmp_path / "log"))
    with start_server(1, 2) as other:
        for more in (("--load", url), ()):
            process, address = serve(*options, *more)
            told = f"{address} began with the checkpoint {url} (cut {cut}), and the one at "
            with pytest.raises(Mismatch, match=re.escape(f"{told}{other.address} with no")):
                join([address, other.address])
            process.kill()
            process.wait()
        # As older servers wrote it: whether that was the same one nobody knows.
        (tmp_path / "log" / "loaded-00000-of-00002").write_text(f"{url}\n")
        _, address = serve(*options)
        join([address, other.address]).close()
    with start_server(1, 2, waits_to_open=True) as other:
        other.core.tell_beginning(cut, url)
        other.core.open()
        join([address, other.address]).close()


def test_a_shard_that_is_gone_is_missed_beside_others(
    serve: Serve,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    log = tmp_path / "log"
    options = ("--threads", "2", "--log", str(log))
    one, other = log / "shard-00000-of-00002", log / "shard-00001-of-00002"
    for _ in range(2):  # Where nobody has pushed yet, a kill may come before the second one.
        process, address = serve(*options)
        process.kill()
        process.wait()
        shutil.rmtree(other)
    process, address = serve(*options)
    with join([address]) as ps:
        ps.sparse_table("t", 2, gr.optim.Sum()).push(np.arange(50), np.ones((50, 2)))
    process.kill()
    process.wait()
    for gone, left in ((one, other), (other, one)):
        gone.rename(tmp_path / "away")
        assert main(["serve", *options]) == 2
        assert f"{gone} is missing or empty, but {left} has" in capsys.readouterr().err
        assert not gone.exists()
        (tmp_path / "away").rename(gone)
    _, address = serve(*options)
    with join([address]) as ps:
        assert (ps.sparse_table("t", 2, gr.optim.Sum()).pull(np.arange(50)) == 1).all()


def test_a_load_that_was_cut_short_begins_again(
    serve: Serve,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, ids, log = str(tmp_path / "checkpoint"), np.arange(50), tmp_path / "log"
    with connected(2) as ps:
        ps.sparse_table("t", 2, gr.optim.Sum()).push(ids, np.full((50, 2), 3.0))
        ps.save(url)
    options = ("--log", str(log), "--load", url)

    def killed(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("the signal was not heard")

    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with monkeypatch.context() as there:
        there.setattr(checkpoint, "load_server", killed)
        try:
            assert main(["serve", *options]) == 0
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
                signal.signal(number, handler)
    assert sorted(path.name for path in log.iterdir()) == [
        "loading-00000-of-00001",
        "shard-00000-of-00001",
    ]
    assert main(["serve", "--log", str(log)]) == 2
    assert f"begin with the checkpoint {url}, and loading that was cut short" in (
        capsys.readouterr().err
    )
    with (log / "shard-00000-of-00001" / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["serve", *options]) == 2
        assert "in use by another server" in capsys.readouterr().err
    _, address = serve(*options)
    with join([address]) as ps:
        assert (ps.sparse_table("t", 2, gr.optim.Sum()).pull(ids) == 3).all()
    assert (log / "loaded-00000-of-00001").exists()


def test_a_checkpoint_whose_store_hangs_ends_the_server_with_its_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")  # Whoever opens it waits for a writer.
    ran = subprocess.run(
        [sys.executable, "-m", "gradring", "serve", "--load", tmp_path, "--load-timeout", "0.2"],
        env={**os.environ, "GRADRING_SECRET": SECRET},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 1
    assert f"server 0: load {tmp_path}: {tmp_path} was not done within 0.2 s" in ran.stderr


def test_a_frozen_server_is_named_by_the_deadline_and_can_be_used_again(
    serve: Serve, tmp_path: Path
) -> None:
    process, address = serve()
    with join([address]) as ps:
        table = ps.sparse_table("t", 1, gr.optim.Sum())
        table.push([1], [[1.0]])
        freeze(process.pid)
        with pytest.raises(TimedOut, match=address):
            table.pull([1], timeout=0.3)
        with pytest.raises(TimedOut, match=f"'t'.*{address}|{address}.*'t'"):
            table.push([1], [[1.0]], timeout=0.3)
        with pytest.raises(TimedOut, match=f"read of table 't'.*{address}"):  # No store hangs.
            table.export(tmp_path / "t.npz", timeout=0.3)
        process.send_signal(signal.SIGCONT)
        assert table.export(tmp_path / "t.npz")
        assert table.pull([2]).tolist() == [[0]]
        assert table.pull([1])[0, 0] in (1, 2)  # Once or not at all.


def test_who_hangs_up_on_a_server_is_told_with_the_harmless_reason_alone(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    process, address = serve()
    host, port = address.rsplit(":", 1)
    socket.create_connection((host, int(port)), 30).close()
    with join([address]) as ps:  # Its connection is taken after that one.
        assert len(ps.stats()) == 1
        while process.poll() is None and "refused" not in (said := capfd.readouterr().err):
            assert len(ps.stats()) == 1
    assert "without a word, as who looks whether anybody listens here" in said
    assert "secret" not in said.lower()


def test_ctrl_c_ends_a_wait(serve: Serve) -> None:
    process, address = serve()
    program = (
        "import sys\n"
        "import gradring as gr\n"
        "ps = gr.ps.connect(sys.argv[1], secret=sys.argv[2], timeout=100)\n"
        "table = ps.sparse_table('t', 1, gr.optim.Sum())\n"
        "print('ready', flush=True)\n"
        "input()\n"
        "try:\n"
        "    print('pulling', flush=True)\n"
        "    table.pull([1])\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
        "    import os; os._exit(0)\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program, address, SECRET],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "ready\n"
        freeze(process.pid)
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "pulling\n"
        worker.send_signal(signal.SIGINT)
        assert worker.communicate(timeout=30) == ("interrupted\n", None)
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--index", "2", "--servers", "2"], "--index 2 is not below --servers 2"),
        (["--threads", "0"], "a server has at least one"),
        (["--fsync", "sometimes"], "is not none, always or a number"),
        (["--fsync", "50 s"], "is not none, always or a number"),
        (["--fsync", "0"], "is not none, always or a number"),  # Without a log too.
        (["--fsync", "9" * 20], "is not none, always or a number"),
        (["--fsync", "always"], "--fsync always without --log"),
        (["--load-timeout", "0"], "--load-timeout 0: not a positive number of seconds"),
        (["--load-timeout", "nan"], "--load-timeout nan: not a positive number of seconds"),
        (["--load-timeout", "60"], "--load-timeout without --load"),
        (["--listen-fd", "99"], "--listen-fd 99 is not a socket that listens"),
        (["--port", "70000"], "is not a port"),
    ],
)
def test_options_that_make_no_sense_are_told_in_one_line(
    options: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    assert main(["serve", *options]) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert shown.count("\n") == 1


def test_options_are_given_in_full_as_the_launcher_looks_for_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--por", "99"])
    assert "unrecognized arguments: --por" in capsys.readouterr().err


def test_a_log_needs_a_working_directory_or_a_path_from_the_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    assert main(["serve", "--log", "log"]) == 2
    assert "there is no working directory any more" in capsys.readouterr().err


def test_without_a_secret_it_says_how_to_make_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for unset in ("", "  "):
        monkeypatch.setenv("GRADRING_SECRET", unset)
        assert main(["serve"]) == 2
        assert "export GRADRING_SECRET=" in capsys.readouterr().err


def test_a_log_that_cannot_be_written_is_named_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    note = LoadNote(tmp_path / "file" / "log", 0, 1, 1)
    with pytest.raises(DeviceError, match=r"file/log cannot be written: Not a directory"):
        note.begin("nowhere")
