"""The data of word2vec.py and ctr.py: text, flights, census, and two streams made from a seed.

And scikit-learn's digits, which come with it, for the others.

Files are looked for in $GRADRING_DATA, else in ../shared/data beside the repository, in a folder
of their own (text, nycflights13, adult) or right there. Where there are none: the help texts that
come with Python for text, the made stream for tables.
"""

from __future__ import annotations

import functools
import gzip
import os
import re
import secrets
import unicodedata
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # Programs read these data that know nothing of gradring.
    import gradring as gr

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
T = TypeVar("T")

ROWS = 1_000_000  # Rows that the tables' sparse columns are hashed to.
# Files of text, and what a run that read them is called.
TEXTS = {
    "gutenberg_books": "books", "world_factbook": "Factbook", "enwiki_sample": "Wikipedia sample",
}  # fmt: skip
FOLDERS = {"flights": "nycflights13", "adult": "adult"}  # Of the tables' files.
PARTS = 4  # That each worker may have of an epoch at least, where nobody waits for anybody.


def find(folder: str, name: str) -> Path | None:
    """A data file, or None."""
    places = (place / name for place in folders(folder))
    return next((place for place in places if place.exists()), None)


def folders(name: str) -> tuple[Path, Path]:
    """Where the files of a data set are looked for."""
    given = os.environ.get("GRADRING_DATA")
    root = Path(given) if given else Path(__file__).resolve().parents[2] / "shared" / "data"
    return root / name, root


@dataclass(frozen=True)
class Corpus:
    """Running text as numbers.

    Attributes:
        name: Where it is from.
        vocabulary: Words, the most frequent first.
        counts: How often each occurs.
        ids: The text, as places in `vocabulary`; rare words are left out.
        lines: The line that each word of `ids` stands in.
    """

    name: str
    vocabulary: list[str]
    counts: Ids
    ids: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int32]


def corpus(least: int = 5, *, files: Sequence[Path] = (), split: bool = False) -> Corpus:
    """Read text; words that occur fewer than `least` times are left out.

    Args:
        least: See above.
        files: Text in UTF-8, packed where a name ends in .gz, of which no window crosses the end of
            a line; all in one line is one stream. None: the text that there is.
        split: What spaces separate are words as they are, as in a text that was cut into words
            before; else runs of letters are, without their case.

    Raises:
        SystemExit: A file cannot be read, or is in another encoding.
    """
    if files:
        name, lines = ", ".join(path.name for path in files), _lines_of(files)
        cut = str.split if split else _words
    else:
        found = {name: path for name in TEXTS if (path := find("text", f"{name}.txt.gz"))}
        name = ", ".join(TEXTS[name] for name in found) or "Python's help texts"
        lines = _lines_of(list(found.values())) if found else _help_texts()
        cut = _english_words
    number: dict[str, int] = {}
    numbers, lengths = array("i"), array("q")
    for line in lines:
        words = cut(line)
        lengths.append(len(words))
        numbers.extend(number.setdefault(word, len(number)) for word in words)
    ids = np.frombuffer(numbers, np.int32) if numbers else np.empty(0, np.int32)
    counts = np.bincount(ids, minlength=len(number))
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] >= least]
    places = np.full(len(number), -1, np.int32)
    places[order] = np.arange(len(order))
    ids = places[ids]
    line_of = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    known, words = ids >= 0, list(number)
    return Corpus(name, [words[one] for one in order], counts[order], ids[known], line_of[known])


def _english_words(line: str) -> list[str]:
    return re.findall(r"[a-z']+", line.lower())


def _words(line: str) -> list[str]:
    return _word(has_marks=not line.isascii()).findall(line.lower())


@functools.cache
def _word(*, has_marks: bool) -> re.Pattern[str]:
    """Letters, each with its vowel signs, tones and accents, of which Python's re has no class."""
    letters = r"[^\W\d_]+"
    if has_marks:  # It takes six times as long.
        every = map(chr, range(0x300, 0x20000))
        marks = "".join(one for one in every if unicodedata.category(one).startswith("M"))
        letters += rf"(?:[{marks}]+[^\W\d_]*)*"
    return re.compile(rf"{letters}(?:['\u2019]{letters})*")


def _help_texts() -> Iterator[str]:
    from pydoc_data.topics import topics

    for topic in topics.values():
        yield from topic.split("\n\n")


def _lines_of(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        try:
            opened = gzip.open if path.suffix == ".gz" else open
            # "-sig": without the mark that some editors begin a file with.
            with opened(path, "rt", encoding="utf-8-sig") as file:
                yield from file
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise SystemExit(f"{path} cannot be read as text in UTF-8: {error}") from error


def write_vectors(path: Path, vocabulary: list[str], vectors: Floats) -> None:
    """Write vectors in word2vec's text format, with all their bits.

    As `gensim.models.KeyedVectors.load_word2vec_format` reads it: a line with the number of words
    and of floats in a vector, then a line for each word, the most frequent first.
    """
    line = " ".join(["%s", *["%.9g"] * vectors.shape[1]]) + "\n"
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{len(vocabulary)} {vectors.shape[1]}\n")
        file.writelines(
            line % (word, *vector)
            for word, vector in zip(vocabulary, vectors.tolist(), strict=True)
        )


def analogies(vocabulary: list[str]) -> Ids:
    """Questions "a is to b as c is to d" of which all four words are known, int64 (n, 4)."""
    path = find("text", "questions-words.txt.gz")
    number = {word: place for place, word in enumerate(vocabulary)}
    known = []
    if path is not None:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                places = [number.get(word, -1) for word in line.lower().split()]
                if line[0] != ":" and min(places) >= 0:
                    known.append(places)
    return np.array(known, np.int64).reshape(-1, 4)


@dataclass(frozen=True)
class Pairs:
    """A stream of skip-gram pairs, each with its own negatives.

    Attributes:
        centres: int64 (n,).
        outputs: int64 (n, 1 + negatives), the true one first.
        rows: Words there are.
    """

    centres: Ids
    outputs: Ids
    rows: int


def zipf_pairs(n: int, *, seed: int, rows: int = 100_000, negative: int = 5) -> Pairs:
    """Make a stream whose words are Zipf-distributed and whose neighbours share a topic.

    Word r occurs in proportion to 1 / (r + 1), negatives to its power 0.75. There are 100 topics,
    word r has topic r mod 100, and four contexts of five are of their centre's topic.
    """
    random = np.random.default_rng(seed)
    topics = 100
    weights = 1 / np.arange(1, rows + 1)
    power = np.cumsum(weights**0.75)
    within = np.cumsum(weights[::topics])
    whole = np.cumsum(weights)

    def draw(cumulated: npt.NDArray[np.float64], shape: tuple[int, ...]) -> Ids:
        return np.searchsorted(cumulated / cumulated[-1], random.random(shape))

    centres = draw(whole, (n,))
    inside = np.minimum(draw(within, (n,)) * topics + centres % topics, rows - 1)
    contexts = np.where(random.random(n) < 0.8, inside, draw(whole, (n,)))
    outputs = np.concatenate([contexts[:, None], draw(power, (n, negative))], axis=1)
    return Pairs(centres, outputs, rows)


@dataclass(frozen=True)
class Table:
    """Examples with sparse and dense columns and a label of 0 or 1.

    Attributes:
        name: Where they are from.
        ids: int64 (n, slots), each value hashed with its slot's number to 0..ROWS.
        dense: float32 (n, columns), about standardised.
        labels: float32 (n,).
        train: The first so many are for training, the rest for testing.
        best_auc: Of whoever knows the true probabilities of the test part; None if nobody does,
            or if there is none.
    """

    name: str
    ids: Ids
    dense: Floats
    labels: Floats
    train: int
    best_auc: float | None = None


def table(name: str, *, examples: int = 102_400, seed: int = 0) -> Table:
    """Load flights or adult, or make examples: `name` is "flights", "adult" or "synthetic".

    The made ones are `examples` for training and a fifth as many for testing. Where a file is
    missing, they stand in.
    """
    if name == "flights" and (path := find(FOLDERS[name], "nycflights13.npz")):
        return _flights(path)
    if name == "adult":
        parts = [find(FOLDERS[name], file) for file in ("adult.data.gz", "adult.test.gz")]
        if parts[0] and parts[1]:
            return _adult(parts[0], parts[1])
    return synthetic_table(examples, seed=seed)


def hashed(columns: list[Ids]) -> Ids:
    """Stack columns to (n, slots) and hash each value with its slot's number to 0..ROWS."""
    x = np.stack(columns, axis=1).astype(np.uint64)
    x += np.arange(1, len(columns) + 1, dtype=np.uint64) << np.uint64(40)
    x *= np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing, folded twice.
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xD6E8FEB86659FD93)
    return ((x >> np.uint64(32)) % np.uint64(ROWS)).astype(np.int64)


def standardised(columns: list[Floats]) -> Floats:
    x = np.stack(columns, axis=1).astype(np.float64)
    return ((x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)).astype(np.float32)


def _flights(path: Path) -> Table:
    """Flights from New York in 2013: is this one late? Every tenth day is for testing."""
    with np.load(path) as data:
        z = {name: data[name].astype(np.int64) for name in data.files if data[name].ndim == 1
             and data[name].dtype.kind in "iu"}  # fmt: skip
    weekday = (z["hour_utc"] // 24 + 3) % 7
    names = ("tailnum", "flight", "carrier", "origin", "dest", "month", "day", "hour", "minute")
    columns = [z[name] for name in names]
    columns += [weekday, z["flight"] * 32 + z["carrier"]]
    crossed = (
        ("carrier", "origin"), ("carrier", "dest"), ("origin", "dest"), ("carrier", "hour"),
        ("origin", "hour"), ("dest", "hour"), ("carrier", "month"), ("tailnum", "hour"),
    )  # fmt: skip
    columns += [z[a] * 10_000 + z[b] for a, b in crossed]
    turn = 2 * np.pi * (z["hour"] + z["minute"] / 60) / 24
    year = 2 * np.pi * (z["month"] * 30.5 + z["day"]) / 372
    dense = [z["distance"], z["hour"], np.sin(turn), np.cos(turn), np.sin(year), np.cos(year)]
    is_test = z["hour_utc"] // 24 % 10 == 0
    order = np.argsort(is_test, kind="stable")
    labels = z["late"].astype(np.float32)[order]
    train = int((~is_test).sum())
    return Table("flights", hashed(columns)[order], standardised(dense)[order], labels, train)


def _adult(train: Path, test: Path) -> Table:
    """The census: does a person earn more than 50,000? The data set's own test part is tested."""
    rows = []
    for path in (train, test):
        with gzip.open(path, "rt", encoding="ascii") as file:
            rows.append([r.strip().split(", ") for r in file if r.strip() and r[0] != "|"])
    order = np.random.default_rng(0).permutation(len(rows[0]))
    columns = list(zip(*[rows[0][place] for place in order], *rows[1], strict=True))
    places = {word: 1 for words in columns for word in words}
    places = {word: place for place, word in enumerate(places)}
    numeric = (0, 2, 4, 10, 11, 12)
    words = [np.array([places[word] for word in column]) for column in columns]
    slots = [words[i] for i in range(14) if i not in numeric]
    pairs = ((1, 6), (1, 3), (3, 6), (5, 7), (5, 9), (6, 13), (3, 7), (3, 9))  # Crossed columns.
    slots += [words[a] * len(places) + words[b] for a, b in pairs]
    numbers = [np.array(columns[i], np.float32) for i in numeric]
    slots += [numbers[0].astype(np.int64) // 5, numbers[5].astype(np.int64) // 5]
    dense = [*numbers[:1], np.log1p(numbers[1]), numbers[2], *map(np.log1p, numbers[3:5])]
    labels = np.array([label.startswith(">50K") for label in columns[14]], np.float32)
    return Table("adult", hashed(slots), standardised([*dense, numbers[5]]), labels, len(order))


def synthetic_table(examples: int, *, seed: int = 0, slots: int = 26, columns: int = 13) -> Table:
    """Make click data whose best possible AUC is known, because the probabilities are.

    Slots have 100 to 1,000,000 values, Zipf-distributed. The logit is linear: a normal
    weight for each value and each dense column, scaled so that the AUC of the true probabilities
    comes out at 0.90.
    """
    random = np.random.default_rng(seed)
    n = examples + examples // 5
    dense = random.standard_normal((n, columns), dtype=np.float32)
    logits = dense @ random.standard_normal(columns, dtype=np.float32) / columns**0.5
    values = []
    for size in np.geomspace(100, 1_000_000, slots).astype(int):
        power = np.cumsum(1 / np.arange(1, size + 1) ** 1.05)
        drawn = np.searchsorted(power / power[-1], random.random(n))
        values.append(drawn)
        logits += random.standard_normal(size, dtype=np.float32)[drawn] / 2
    logits = 2.65 * (logits - logits.mean()) / (logits.std() or 1) - 1  # One example has none.
    labels = (random.random(n) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    best = auc(labels[examples:], logits[examples:])
    return Table("synthetic", hashed(values), dense, labels, examples, best)


def auc(labels: Floats, scores: Floats) -> float | None:
    """The area under the ROC curve: how often a 1 is scored above a 0, ties counting half.

    ``None`` where there is no 1 or no 0.
    """
    ones = labels > 0.5
    n = int(ones.sum())
    if n in (0, len(labels)):
        return None
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.bincount(inverse, ranks) / counts)[inverse]
    return float((ranks[ones].sum() - n * (n + 1) / 2) / (n * (len(labels) - n)))


def load_digits(**options: Any) -> Any:
    """scikit-learn's function of that name, or the end of a program that lacks it."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        message = "this trains on scikit-learn's digits: pip install 'gradring[examples]'"
        raise SystemExit(message) from None
    return datasets.load_digits(**options)


def run_number(comm: gr.Communicator) -> int:
    """A number that all workers of this run have, and no other run."""
    return int(comm.broadcast(np.array([secrets.randbits(62)]), 0)[0])


def are_alike(comm: gr.Communicator, arrays: Iterable[npt.NDArray[np.generic]]) -> bool:
    """Whether all workers have the same bits in these; every worker asks."""
    sums = [zlib.crc32(np.ascontiguousarray(array)) for array in arrays]
    return bool((comm.all_gather(np.array(sums)) == sums).all())


def part_batches(batches: int, workers: int, least: int, most: int) -> int:
    """Batches in a part of an epoch that has so many: few enough that every worker has several.

    From `least` to `most`; the first counts where both cannot be.
    """
    return max(least, min(most, batches // (PARTS * workers)))


def with_next(items: Iterator[T]) -> Iterator[tuple[T, T | None]]:
    """Each item and the one after it."""
    item = next(items, None)
    while item is not None:
        coming = next(items, None)
        yield item, coming
        item = coming
