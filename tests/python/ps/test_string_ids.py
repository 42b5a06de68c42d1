"""Ids of strings: one for each, the same for ever, which other programs can make, too."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradring as gr
from gradring.ps import ids_of
from source_tree import ROOT

# These are in checkpoints: another id for a string would lose its row.
FOREVER = [
    ("", {}, 13020603013274838756),
    ("alice", {}, 9933345172075899469),
    (b"alice", {}, 9933345172075899469),
    ("žluť", {}, 1325807525951188642),
    ("alice", {"salt": "item"}, 7774522417756623274),
    ("alice", {"salt": b"item"}, 7774522417756623274),
    ("alice", {"slot": 7}, 2063568793823821),
    ("alice", {"slot": 1, "shift": 63}, 9933345172075899469 | 1 << 63),
]


@pytest.mark.parametrize(("text", "options", "expected"), FOREVER, ids=str)
def test_a_string_has_one_id_for_ever(
    text: str | bytes, options: dict[str, Any], expected: int
) -> None:
    assert ids_of([text], **options).tolist() == [expected]
    if options != {"slot": 1, "shift": 63}:
        assert str(expected) in (ROOT / "docs" / "tables.md").read_text()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.binary(max_size=64))
def test_an_id_is_the_published_hash_of_the_string(texts: list[str], salt: bytes) -> None:
    digests = [hashlib.blake2b(t.encode(), digest_size=8, key=salt).digest() for t in texts]
    expected = [int.from_bytes(digest, "little") for digest in digests]
    assert ids_of(texts, salt=salt).tolist() == expected
    assert ids_of([text.encode() for text in texts], salt=salt).tolist() == expected


def test_arrays_of_strings_have_ids_of_their_shape() -> None:
    a, b, c, d = ids_of(["a", "b", "c", "d"]).tolist()
    for given_array in (
        np.array([["a", "b"], ["c", "d"]]),
        np.array([[b"a", b"b"], [b"c", b"d"]]),
        np.array([["a", b"b"], [b"c", "d"]], object),
        np.array([["a", "c"], ["b", "d"]]).T,
        [["a", "b"], ("c", "d")],
    ):
        ids = ids_of(given_array)
        assert ids.dtype == np.uint64
        assert ids.tolist() == [[a, b], [c, d]]
    assert ids_of("a").shape == ()
    assert ids_of("a") == a
    assert ids_of([]).shape == (0,)
    assert ids_of(np.empty((0, 3), str)).shape == (0, 3)
    nul = ids_of(["a\0", b"a\0", "a"])
    assert nul[0] == nul[1] != nul[2]


def test_strings_of_a_slot_have_its_bits_and_another_salt_gives_other_ids() -> None:
    texts = [f"{number}" for number in range(2000)]
    slots = ids_of(texts, slot=65535)
    assert set((slots >> np.uint64(48)).tolist()) == {65535}
    assert len({*ids_of(texts, slot=1).tolist(), *slots.tolist()}) == 4000
    salted = [ids_of(texts, salt=salt).tolist() for salt in ("", "a", "b")]
    assert len({*salted[0], *salted[1], *salted[2]}) == 6000


def test_no_string_has_the_id_0() -> None:
    texts = [f"{number}" for number in range(64)]
    assert set(ids_of(texts, slot=0, shift=1).tolist()) == {1}
    assert set(ids_of(texts, slot=1, shift=1).tolist()) == {2, 3}


@pytest.mark.parametrize(
    ("strings", "words"),
    [
        (None, r"strings\[0\] is None; give a str or bytes, '' for example"),
        (["a", None], r"strings\[1\] is None"),
        (np.array(["a", np.nan], object), r"strings\[1\] is of float"),
        ([1], r"strings\[0\] is of int; .*whole numbers are ids as they are"),
        (np.arange(3), r"strings\[0\] is of int"),
        ([["a"], ["b", "c"]], r"strings\[0\] is of list"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], "makes no array"),
        ({"a"}, "is of set"),
        (["\ud800"], "half a character"),
        (np.ma.masked_array(["a"], [True]), "masked array"),
    ],
)
def test_what_is_no_string_is_refused_with_its_place(strings: Any, words: str) -> None:
    with pytest.raises(gr.InvalidArgument, match=f"ids_of: .*{words}"):
        ids_of(strings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"salt": "x" * 65}, "salt has 65 bytes; at most 64"),
        ({"salt": None}, "salt is None"),
        ({"salt": 5}, "salt is of int"),
        ({"slot": 1 << 16}, "slot is a whole number from 0 to 65535"),
        ({"slot": -1}, "slot"),
        ({"slot": 1, "shift": 64}, "shift is a whole number from 1 to 63"),
        ({"shift": 0}, "shift"),
    ],
)
def test_a_salt_or_a_slot_that_there_is_not_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(gr.InvalidArgument, match=f"ids_of: {words}"):
        ids_of(["a"], **options)


def test_a_table_has_rows_of_strings() -> None:
    with gr.ps.connect() as ps:
        table = ps.sparse_table("user", 2, gr.optim.SGD(lr=1.0), init=0.0)
        table.push(ids_of(["alice", "bob", "alice"]), -np.eye(3, 2, dtype=np.float32))
        assert table.pull(ids_of(["bob", "alice"])).tolist() == [[0, 1], [1, 0]]
        with pytest.raises(gr.InvalidArgument, match=r"gr\.ps\.ids_of makes them of strings"):
            table.pull(["alice"])
