"""The job's secret is in no message, also where an argument beside it is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradring as gr
from gradring import _core
from gradring.cli import main
from gradring.collectives import joining
from gradring.core_arguments import secret_bytes
from gradring.errors import InvalidArgument
from gradring.settings.config import Settings

SECRET = "open-sesame-open-sesame"
NOT_UTF8 = os.fsdecode(b"caf\xe9")


def test_what_the_core_refuses_it_shows_without_the_secret() -> None:
    secret = secret_bytes(SECRET)
    assert secret == SECRET.encode()
    refused = {
        "join": lambda: _core.join(rank="x", secret=secret),  # type: ignore[arg-type,call-arg]
        "serve": lambda: _core.PsServer(host=1, secret=secret),  # type: ignore[arg-type,call-arg]
        "connect": lambda: _core.PsClient(servers=1, secret=secret),  # type: ignore[arg-type,call-arg]
        "inspect": lambda: _core.inspect(NOT_UTF8, secret, 1),
    }
    for call in refused.values():
        with pytest.raises(TypeError) as told:
            call()
        assert "<secret>" in str(told.value)
        assert "sesame" not in str(told.value)


@pytest.mark.parametrize(
    ("variables", "program"),
    [
        ({"GRADRING_INTERFACE": NOT_UTF8}, "gr.init()"),
        ({"GRADRING_RECORD": NOT_UTF8}, "gr.init()"),
        ({"GRADRING_RENDEZVOUS": f"{NOT_UTF8}:1"}, "gr.init(rank=0, world_size=2)"),
        ({"GRADRING_SERVERS": f"{NOT_UTF8}:1"}, "gr.ps.connect()"),
        ({}, "gr.init(listen_fd=1 << 40)"),
        ({}, "gr.init(rank=0, world_size=1, rendezvous='a:1', listen_fd='x')"),
    ],
)
def test_a_variable_or_argument_that_makes_no_sense_is_named_and_the_secret_is_not(
    variables: dict[str, str], program: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"import gradring as gr; {program}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GRADRING_SECRET": SECRET, **variables},
    )
    assert "InvalidArgument: " in ended.stderr
    assert "sesame" not in ended.stderr
    for name in variables:
        assert name in ended.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--servers", "99999999999999999999"], "more than 1024 shards"),
        (["--threads", "99999999999999999999"], "more than 1024 shards"),
        (["--listen-fd", "99999999999999999999"], "is not a socket that listens"),
        (["--host", NOT_UTF8], "is not UTF-8 text"),
        (["--log", NOT_UTF8], "is not UTF-8 text"),
    ],
)
def test_a_server_refuses_what_the_core_could_not_take_without_showing_the_secret(
    options: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GRADRING_SECRET", SECRET)
    assert main(["serve", *options]) == 2
    shown = capsys.readouterr().err
    assert options[0] in shown
    assert words in shown
    assert "sesame" not in shown


def test_a_trace_may_go_into_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / NOT_UTF8
    settings = Settings.from_environ({"GRADRING_TRACE": str(folder)})
    joining.join(joining.Place(0, 1, "", SECRET), settings).close()
    assert (folder / "rank-0.trace.json").exists()


def test_a_temporary_folder_whose_name_is_not_utf8_is_passed_over_for_records() -> None:
    # What a failure says names the record, and has to be text.
    assert Settings.from_environ({"TMPDIR": f"/tmp/{NOT_UTF8}"}).record == "/tmp/gradring-{job}"


def test_a_secret_may_be_any_bytes() -> None:
    assert secret_bytes(os.fsdecode(b"\xff\xfe")) == b"\xff\xfe"
    assert secret_bytes(b"\xff\xfe") == b"\xff\xfe"
    with pytest.raises(InvalidArgument, match="half a character") as refused:
        secret_bytes("sesame\ud800")
    assert "sesame" not in str(refused.value)
    with pytest.raises(InvalidArgument, match="not int"):
        gr.init(secret=7)  # type: ignore[arg-type]


def test_an_error_of_the_core_may_name_a_file_by_any_bytes() -> None:
    with pytest.raises(gr.DeviceError, match=r"log: /proc/caf\\xe9/shard-\S+ cannot be made"):
        _core.PsServer(
            host="127.0.0.1", port=0, listen_fd=-1, threads=1, index=0, servers=1,
            secret=secret_bytes(SECRET), transport="tcp",
            log_directory=b"/proc/caf\xe9",  # type: ignore[arg-type]
            fsync="none",
        )  # fmt: skip


BLANKS = ["", b"", "\n", " \t", b"\r\n", "\u3000"]


@pytest.mark.parametrize("secret", BLANKS, ids=repr)
def test_a_secret_of_nothing_is_refused(secret: str | bytes) -> None:
    with pytest.raises(InvalidArgument, match="init: secret: the secret is empty or blank"):
        gr.init(rank=0, world_size=2, rendezvous="127.0.0.1:1", secret=secret)
    for servers in (None, "127.0.0.1:1"):
        with pytest.raises(InvalidArgument, match="connect: secret: the secret is empty or blank"):
            gr.ps.connect(servers, secret=secret)


def test_a_blank_secret_of_servers_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADRING_SECRET", "\n")
    with pytest.raises(InvalidArgument, match="GRADRING_SECRET: the secret is empty or blank"):
        gr.ps.connect("127.0.0.1:1")
