"""What a script keeps beside a checkpoint, in its manifest: its notes come back as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradring as gr
from gradring.errors import InvalidArgument, ProtocolError
from gradring.ps import checkpoint
from gradring.ps.saved import manifest, notes
from ps_servers import connected, join, serving

NOTES = {
    "epoch": 3,
    "best": float("inf"),  # As of torch's ReduceLROnPlateau.
    "schedule": {"last_epoch": 3, "_last_lr": [0.1, 1e-9], "verbose": False, "of": None},
    "position": {"file": "\u00e4\ud800", "byte": 2**63 + 1, "passes": []},
}


def test_notes_come_back_from_load_verify_and_read_notes(tmp_path: Path) -> None:
    given = json.loads(json.dumps(NOTES))
    with serving(2) as addresses, join(addresses) as ps:
        table = ps.dense_table("t", (3,), gr.optim.SGD(lr=1.0))
        table.push(np.ones(3, np.float32))
        made = ps.save(tmp_path / "1", notes=given)
        given["epoch"] = 4  # A copy was kept.
        above = ps.save(tmp_path / "2", base=tmp_path / "1", notes={"epoch": 4})
        bare = ps.save(tmp_path / "3", base=tmp_path / "2")
        assert (made.notes, above.notes, bare.notes) == (NOTES, {"epoch": 4}, {})
        for name, expected in (("1", NOTES), ("2", {"epoch": 4}), ("3", {})):
            assert ps.load(tmp_path / name).notes == expected
    (tmp_path / "latest").symlink_to(tmp_path / "1")
    assert checkpoint.verify(tmp_path / "1").notes == NOTES
    assert checkpoint.read_notes(tmp_path / "latest") == NOTES
    with pytest.raises(InvalidArgument, match="there is no checkpoint at"):
        checkpoint.read_notes(tmp_path)


def test_a_checkpoint_from_before_there_were_notes_loads_with_none(tmp_path: Path) -> None:
    with connected() as ps:
        ps.dense_table("t", (3,), gr.optim.SGD(lr=1.0)).push(np.ones(3, np.float32))
        ps.save(tmp_path, notes=NOTES)
        path = tmp_path / manifest.NAME
        body = json.loads(path.read_text())
        del body["notes"], body["crc32c"]
        path.write_text(json.dumps(body | {"crc32c": manifest._crc(body)}))
        assert ps.load(tmp_path).notes == {}


def test_notes_are_under_the_manifests_checksum(tmp_path: Path) -> None:
    with connected() as ps:
        ps.save(tmp_path, notes={"epoch": 3})
        path = tmp_path / manifest.NAME
        path.write_text(path.read_text().replace('"epoch": 3', '"epoch": 8'))
        for read in (ps.load, checkpoint.read_notes):
            with pytest.raises(ProtocolError, match="its checksum is wrong"):
                read(tmp_path)


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
WIDE: list[Any] = []
for _ in range(40):
    WIDE = [WIDE, WIDE]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([1], "notes is a list; give a dict"),
        ({"a": {"b": [0, np.float32(1)]}}, r"notes\['a'\]\['b'\]\[1\] is a numpy.float32"),
        ({"a": (1, 2)}, r"notes\['a'\] is a tuple; .* of a tuple list"),
        ({"a": b"x"}, r"notes\['a'\] is a bytes"),
        ({"a": {1: 2}}, r"notes\['a'\] has 1 as a key, a int, .* give str\(key\)"),
        ({"a": 1 << 64}, r"notes\['a'\] is a whole number of more than 64 bits"),
        ({"a": ENDLESS}, r"notes\['a'\]\[0\]\[0\]... has a value inside of more than 64"),
        ({"a": WIDE}, "at most 1048576 bytes of JSON"),
        ({"a": "x" * notes.MOST_BYTES}, "at most 1048576 bytes of JSON, and these are 10485"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_not_come_back_is_refused_before_anything_is_saved(
    tmp_path: Path, given: Any, text: str
) -> None:
    with connected() as ps:
        sent = ps.bytes_sent
        with pytest.raises(InvalidArgument, match=text):
            ps.save(tmp_path / "step-1", notes=given)
        assert ps.bytes_sent == sent
    assert list(tmp_path.iterdir()) == []
