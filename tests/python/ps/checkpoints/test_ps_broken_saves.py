"""Saves that cannot end well: what is in the folder is a whole checkpoint or none at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import DeviceError, Error, InvalidArgument
from gradring.ps import ParameterServer, checkpoint
from gradring.ps.saved import asked_jobs
from ps_servers import SECRET, connected, join, serving, together

pytestmark = pytest.mark.timeout(60)
FILE = "shard-00000-of-00001.grps"


def table_of(ps: ParameterServer) -> Any:
    return ps.dense_table("d", 1 << 16, gr.optim.Sum())  # Several times what a pipe holds.


def train(ps: ParameterServer) -> Any:
    table_of(ps).push(np.ones(1 << 16, np.float32))
    return table_of(ps).pull()


def check_that_a_save_works(ps: ParameterServer, folder: Path) -> None:
    saved = train(ps)
    ps.save(str(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", FILE]
    train(ps)
    ps.load(str(folder))
    np.testing.assert_array_equal(table_of(ps).pull(), saved)


def test_of_saves_at_once_into_one_folder_one_wins_and_the_others_say_why(tmp_path: Path) -> None:
    def save(number: int, addresses: list[str]) -> Any:
        with join(addresses, client=number) as ps:
            train(ps)
            try:
                return ps.save(str(tmp_path / "step"))
            except InvalidArgument as error:
                return str(error)

    with serving(2) as addresses:
        made = together([lambda n=n: save(n, addresses) for n in range(4)])  # type: ignore[misc]
    refused = [one for one in made if isinstance(one, str)]
    assert len(refused) == len(made) - 1, made
    for text in refused:
        assert "another save is writing to" in text or "there is a checkpoint at" in text
    [won] = [one for one in made if not isinstance(one, str)]
    assert checkpoint.verify(str(tmp_path / "step")).cut == won.cut


def test_of_saves_at_once_into_several_folders_one_is_made_and_the_others_are_whole_or_refused(
    tmp_path: Path,
) -> None:
    with serving(4) as addresses, contextlib.ExitStack() as closing:
        clients = [closing.enter_context(join(addresses, client=number)) for number in range(3)]
        train(clients[0])
        for turn in range(10):
            gate = threading.Barrier(3)

            def save(number: int, turn: int = turn, gate: threading.Barrier = gate) -> str:
                gate.wait()
                try:
                    clients[number].save(str(tmp_path / f"{turn}-{number}"))
                except InvalidArgument as error:
                    return str(error)
                return ""

            made = together([lambda n=n: save(n) for n in range(3)])  # type: ignore[misc]
            assert "" in made, made
            for number, refused in enumerate(made):
                folder = tmp_path / f"{turn}-{number}"
                assert (folder / "manifest.json").exists() == (not refused)
                if refused:
                    assert "another checkpoint is just" in refused or "still being" in refused
                else:
                    checkpoint.verify(str(folder))


# A server that writes its file into a pipe: it can write no further than is read.
INTO_A_PIPE = """
import os, sys
from gradring import cli
pipe, open_ = sys.argv[1], os.open
os.open = lambda path, flags, *mode: (
    open_(pipe, os.O_WRONLY) if str(path).endswith(".draft") else open_(path, flags, *mode)
)
sys.exit(cli.main(["serve"]))
"""


@contextlib.contextmanager
def served(pipe: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-c", INTO_A_PIPE, str(pipe)],
        env={**os.environ, "GRADRING_SECRET": SECRET},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            yield server, server.stdout.readline().split(" at ")[1].split(",")[0]
        finally:
            server.kill()


def test_a_server_that_dies_during_a_save_fails_it_and_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked_jobs, "_LOOK_SECONDS", 0.2)
    folder, written = tmp_path / "step", tmp_path / "pipe"
    os.mkfifo(written)
    errors: list[Error] = []
    with served(written) as (server, address), join([address], timeout=1) as ps:
        train(ps)

        def save() -> None:
            with pytest.raises(Error) as raised:
                ps.save(str(folder))
            errors.append(raised.value)

        saver = threading.Thread(target=save)
        saver.start()
        with written.open("rb") as pipe:
            assert pipe.read(4096)
            server.kill()
            saver.join(30)
        assert not saver.is_alive()
    assert address in str(errors[0])
    assert not (folder / FILE).exists()
    with connected() as ps:
        with pytest.raises(InvalidArgument, match="there is no checkpoint"):
            ps.load(str(folder))
        check_that_a_save_works(ps, folder)


def test_a_folder_that_is_removed_during_a_save_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "step"
    sync = os.fsync

    def remove_before_sync(file: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        sync(file)

    with connected() as ps:
        train(ps)
        with monkeypatch.context() as removed:
            removed.setattr(os, "fsync", remove_before_sync)
            with pytest.raises(DeviceError, match=rf"{folder}/{FILE} cannot be written: No such"):
                ps.save(str(folder))
        assert not folder.exists()
        check_that_a_save_works(ps, folder)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    path.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(path)]
    if not shutil.which("mount") or subprocess.run(mounted, check=False).returncode:
        pytest.skip("a disk of its own cannot be mounted: that wants root")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True, capture_output=True)


def test_a_disk_that_fills_up_during_a_save_is_named_and_the_next_save_works(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk, connected() as ps:
        train(ps)
        with pytest.raises(DeviceError, match=rf"{FILE} cannot be written: No space left"):
            ps.save(str(disk / "step"))
        assert list((disk / "step").iterdir()) == []
        check_that_a_save_works(ps, tmp_path / "step")
