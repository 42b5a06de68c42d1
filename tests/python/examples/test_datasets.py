"""The examples' data: files in the formats they come in, and what stands in for them."""

from __future__ import annotations

import gzip
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from source_tree import ROOT

sys.path.insert(0, str(ROOT / "examples"))

from curves import read
from datasets import (
    ROWS,
    analogies,
    auc,
    corpus,
    hashed,
    part_batches,
    synthetic_table,
    table,
    write_vectors,
)

TEXT = "Athens lies in Greece, as Oslo lies in Norway.\n" * 30
QUESTIONS = ": capitals\nAthens Greece Oslo Norway\nAthens Greece Paris France\n"


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where files are looked for: in a folder of their data set, or right there."""
    monkeypatch.setenv("GRADRING_DATA", str(tmp_path))
    return tmp_path


def pack(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)


def test_text_is_found_without_files_too() -> None:
    data = corpus()
    assert data.name == "Python's help texts"
    assert len(data.ids) == len(data.lines) == data.counts.sum()
    assert (np.bincount(data.ids) == data.counts).all()
    assert (np.diff(data.counts) <= 0).all()
    assert analogies(data.vocabulary).shape == (0, 4)


def test_text_of_files_is_read_in_their_order(files: Path) -> None:
    pack(files / "text" / "world_factbook.txt.gz", TEXT)
    pack(files / "gutenberg_books.txt.gz", "Lies, lies. It's rare.\n" * 3)
    data = corpus()
    assert data.name == "books, Factbook", "of what is there"
    assert data.vocabulary[:2] == ["lies", "in"]
    assert set(data.vocabulary) == {"lies", "in", "athens", "greece", "as", "oslo", "norway"}
    assert data.counts[0] == 2 * 30 + 2 * 3
    words = [data.vocabulary[word] for word in data.ids]
    assert words[:6] == ["lies"] * 6, "the books come first, without what is rare"
    assert " ".join(words[6:15]) == "athens lies in greece as oslo lies in norway"
    assert data.lines.tolist() == [line for line in range(3) for _ in range(2)] + [
        line for line in range(3, 33) for _ in range(9)
    ]


def test_questions_are_those_whose_words_are_all_known(files: Path) -> None:
    pack(files / "text" / "questions-words.txt.gz", QUESTIONS)
    vocabulary = ["norway", "oslo", "greece", "athens", "paris"]
    assert analogies(vocabulary).tolist() == [[3, 2, 1, 0]]


def test_text_of_ones_own_is_cut_at_all_but_letters_or_at_spaces(tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt.gz"
    one.write_text("Größe: it's 'naïve', 2 žluť.\n\ngröße", encoding="utf-8")
    pack(two, "New_York <s>  žluť\n")
    data = corpus(1, files=[one, two])
    assert data.name == "one.txt, two.txt.gz"
    assert data.vocabulary == ["größe", "žluť", "it's", "naïve", "new", "york", "s"]
    assert [data.vocabulary[word] for word in data.ids[:5]] == [
        "größe", "it's", "naïve", "žluť", "größe"
    ]  # fmt: skip
    assert data.lines.tolist() == [0, 0, 0, 0, 2, 3, 3, 3, 3]
    assert corpus(2, files=[one, two]).vocabulary == ["größe", "žluť"]
    assert corpus(1, files=[two], split=True).vocabulary == ["New_York", "<s>", "žluť"]
    assert corpus(9, files=[one]).vocabulary == []


def test_words_keep_vowel_signs_and_accents_and_a_file_its_first_word(tmp_path: Path) -> None:
    words = ["हिन्दी", "ภาษาไทยที่", "e\u0301te\u0301", "i\u0307stanbul", "l'e\u0301te\u0301", "don't"]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(words).replace("i\u0307", "İ"), encoding="utf-8-sig")
    assert corpus(1, files=[text]).vocabulary == words
    text.write_text("first\n", encoding="utf-8-sig")
    assert corpus(1, files=[text], split=True).vocabulary == ["first"]


def test_vectors_are_written_as_word2vec_writes_them_with_all_their_bits(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    vectors[1] = [0, -0.0, 1e-40, 3.4e38]
    write_vectors(tmp_path / "v.txt", ["größe", "it's", "<s>"], vectors)
    head, *lines = (tmp_path / "v.txt").read_text(encoding="utf-8").splitlines()
    assert head == "3 4"
    assert [line.split(" ")[0] for line in lines] == ["größe", "it's", "<s>"]
    read = np.array([line.split(" ")[1:] for line in lines]).astype(np.float32)
    np.testing.assert_array_equal(read.view(np.int32), vectors.view(np.int32))


def test_word2vec_answers_the_questions(files: Path) -> None:
    pytest.importorskip("torch")
    from torch_ranks import script_on_our_ranks

    random = np.random.default_rng(0)
    countries = {
        "athens": ("greece", "olives"), "oslo": ("norway", "snow"), "paris": ("france", "wine"),
    }  # fmt: skip
    lines = []
    for capital in random.choice(list(countries), 1500):
        country, good = countries[capital]
        subject = [capital, "city", "mayor"] if random.integers(2) else [country, "land", "king"]
        lines.append(" ".join(random.permutation([*subject, good, f"{good}s"])))
    pairs = [f"{capital} {country}" for capital, (country, _) in countries.items()]
    questions = [f"{one} {other}\n" for one, other in itertools.permutations(pairs, 2)]
    pack(files / "text" / "enwiki_sample.txt.gz", "\n".join(lines) + "\n")
    pack(files / "text" / "questions-words.txt.gz", ": capitals\n" + "".join(questions))
    options = ("--dim", "8", "--blocks", "1", "--epochs", "10", "--lr", "0.1")
    script_on_our_ranks(1, ROOT / "examples" / "word2vec.py", *options, "--out", str(files / "run"))
    outcome = read(files / "run")[2]
    assert (outcome["analogies"], outcome["questions"]) == (1, 6)


def test_flights_of_every_tenth_day_are_for_testing(files: Path) -> None:
    random = np.random.default_rng(0)
    n, day_0 = 30, 376_954 // 24
    days = np.arange(n)
    late = random.integers(0, 2, n)
    columns = {
        "hour_utc": (day_0 + days) * 24 + 10, "carrier": random.integers(1, 17, n),
        "tailnum": random.integers(1, 4000, n), "origin": random.integers(1, 4, n),
        "dest": random.integers(1, 106, n), "flight": random.integers(1, 8000, n),
        "month": days // 28 + 1, "day": days % 28 + 1, "hour": random.integers(5, 24, n),
        "minute": random.integers(0, 60, n), "distance": random.integers(100, 3000, n),
        "late": late,
    }  # fmt: skip
    np.savez(
        files / "nycflights13.npz",
        carrier_names=np.array(["", "9E", "AA"]),
        **{name: column.astype(np.int32) for name, column in columns.items()},
    )
    data = table("flights")
    is_test = (day_0 + days) % 10 == 0
    assert (data.name, data.train, data.best_auc) == ("flights", 27, None)
    assert data.ids.shape == (n, 19)
    assert data.dense.shape == (n, 6)
    assert 0 <= data.ids.min() <= data.ids.max() < ROWS
    np.testing.assert_array_equal(data.labels, np.concatenate([late[~is_test], late[is_test]]))
    np.testing.assert_allclose(data.dense.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(data.dense.std(0), 1, atol=1e-3)


def people(count: int, end: str) -> str:
    """Lines of the census: every third earns more, and is a manager of 100 + its number hours."""
    lines = []
    for number in range(count):
        work, pay = ("Exec-managerial", ">50K") if number % 3 == 0 else ("Sales", "<=50K")
        lines.append(
            f"{20 + number}, Private, {70_000 + number}, Bachelors, 13, Divorced, {work}, "
            f"Unmarried, White, Female, {number * 10}, 0, {100 + number}, United-States, {pay}{end}"
        )
    return "\n".join(lines) + "\n\n"


def test_the_census_is_its_own_two_parts(files: Path) -> None:
    pack(files / "adult" / "adult.data.gz", people(30, ""))
    pack(files / "adult" / "adult.test.gz", "|1x3 Cross validator\n" + people(9, "."))
    data = table("adult")
    assert (data.name, data.train, data.best_auc) == ("adult", 30, None)
    assert data.ids.shape == (39, 18)
    assert data.dense.shape == (39, 6)
    assert data.labels[:30].sum() == 10, "training examples are shuffled"
    np.testing.assert_array_equal(data.labels[30:], np.arange(9) % 3 == 0)
    # The sixth word's slot knows who is a manager: two values, and each is of one label.
    occupations = {(row, label) for row, label in zip(data.ids[:, 3], data.labels, strict=True)}
    assert len(occupations) == 2


@pytest.mark.parametrize("missing", ["adult.data.gz", "adult.test.gz"])
def test_made_clicks_stand_in_where_a_part_is_missing(files: Path, missing: str) -> None:
    for name in {"adult.data.gz", "adult.test.gz"} - {missing}:
        pack(files / "adult" / name, people(30, ""))
    assert table("adult", examples=100).name == "synthetic"
    assert table("flights", examples=100).name == "synthetic"


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("batches", [64, 100, 20_000])
def test_every_worker_may_have_several_parts(batches: int, workers: int) -> None:
    size = part_batches(batches, workers, 1, 190)
    assert 1 <= size <= 190
    assert -(-batches // size) >= 4 * workers or size == 1
    assert part_batches(batches, workers, 1, 8) == min(size, 8)
    assert part_batches(3, workers, 8, 190) == 8, "of a shorter part too little is left"


def test_auc_counts_pairs_and_ties_half() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 200).astype(np.float32)
    scores = random.integers(0, 9, 200).astype(np.float32)
    above = scores[labels == 1][:, None] - scores[labels == 0]
    assert auc(labels, scores) == pytest.approx(((above > 0) + (above == 0) / 2).mean())


@pytest.mark.parametrize("labels", [[], [0, 0], [1, 1]])
def test_there_is_no_auc_where_all_labels_are_alike(labels: list[float]) -> None:
    assert auc(np.array(labels, np.float32), np.zeros(len(labels), np.float32)) is None


def test_made_clicks_have_the_best_auc_that_is_said() -> None:
    data = synthetic_table(10_000, seed=1)
    assert data.best_auc == pytest.approx(0.90, abs=0.02)
    assert data.ids.shape == (12_000, 26)
    assert data.dense.shape == (12_000, 13)
    same = hashed([data.ids[:, 0], data.ids[:, 0]])
    assert (same[:, 0] != same[:, 1]).mean() > 0.99  # Each slot hashes in its own way.
