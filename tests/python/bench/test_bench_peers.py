"""Peers' ranks are started in a folder of their own, and one that does not start is told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradring.bench.groups import GroupFailed, LaunchedGroup
from gradring.bench.options import parse
from gradring.bench.starts import Start


def test_a_peers_interpreter_is_found_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given, found in (
        ("peers/bin/python", str(tmp_path / "peers/bin/python")),
        ("/opt/peers/bin/python", "/opt/peers/bin/python"),
        ("python3.11", "python3.11"),
    ):
        options = parse(["all_reduce", "--peer-python", given], is_launched=False)
        assert options.peer_python == found


def test_a_launcher_that_cannot_be_run_is_a_group_that_failed(tmp_path: Path) -> None:
    start = Start("a peer", (str(tmp_path / "none"),), tmp_path)
    with pytest.raises(GroupFailed, match=r"a peer: could not start .*/none: .*No such file"):
        LaunchedGroup(start, 2, tmp_path / "socket")
