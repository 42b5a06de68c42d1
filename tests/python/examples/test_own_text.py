"""word2vec.py on text of one's own: it is read, trained on, and its vectors are saved."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

import numpy as np
import pytest

from mode_servers import RealServers
from source_tree import ROOT

pytest.importorskip("torch")

sys.path.insert(0, str(ROOT / "examples"))

import word2vec
from curves import read
from datasets import corpus

import gradring as gr
from torch_ranks import script_on_our_ranks


def test_two_workers_save_the_vectors_of_a_text_of_ones_own(tmp_path: Path) -> None:
    text, saved = tmp_path / "text.txt", tmp_path / "vectors.txt"
    words = [f"w{chr(97 + n % 20)}" for n in np.random.default_rng(0).integers(0, 20, 9000)]
    text.write_text(" ".join(words) + " once\n")  # One stream.
    options = ("--mode", "geo", "--text", str(text), "--save", str(saved), "--dim", "3")
    with contextlib.closing(RealServers("shm")) as servers:
        script_on_our_ranks(
            2, ROOT / "examples" / "word2vec.py", *options, "--epochs", "1", "--out",
            str(tmp_path / "run"), servers=servers,
        )  # fmt: skip
    what, _, outcome = read(tmp_path / "run")
    assert what["title"] == "skip-gram on text.txt"
    assert (outcome["words"], outcome["alike"]) == (9000, True)
    head, *lines = saved.read_text().splitlines()
    assert head == "20 3"
    assert {line.split(" ")[0] for line in lines} == set(words)
    assert all(len(line.split(" ")) == 4 for line in lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--text", "/none/text"], "argument --text: there is no file /none/text"),
        (["--save", "/none/vectors"], "argument --save: there is no folder /none"),
        (["--text", __file__, "--synthetic"], "--text and --save are about words"),
        (["--save", "vectors", "--synthetic"], "--text and --save are about words"),
        (["--split"], "--split is for --text"),
        (["--text", __file__, "--save", __file__], "is the text, which would be lost"),
        (["--text", __file__, "--out", __file__], "is the text, which would be lost"),
        (["--min-count", "0"], "argument --min-count: it is at least 1"),
    ],
)
def test_options_of_a_text_that_make_no_sense_are_refused(
    options: list[str], words: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["example", *options])
    with pytest.raises(SystemExit):
        word2vec.parse()
    assert words in capsys.readouterr().err


def test_a_text_without_a_word_that_counts_or_in_another_encoding_is_named(tmp_path: Path) -> None:
    text, packed = tmp_path / "text.txt", tmp_path / "text.gz"
    text.write_bytes("Größe".encode("latin-1"))
    packed.write_bytes(b"no gzip")
    for path, words in ((text, "text.txt cannot be read as"), (packed, "text.gz cannot be read")):
        with pytest.raises(SystemExit, match=words):
            corpus(files=[path])
    text.write_text("four four four four")
    options = argparse.Namespace(
        seed=0, synthetic=False, min_count=5, text=[text], split=False, blocks=8, words=None
    )
    with (
        gr.init(rank=0, world_size=1) as comm,
        pytest.raises(SystemExit, match=r"no word occurs 5 times in text\.txt: --min-count 1"),
    ):
        word2vec.Work(options, comm)
