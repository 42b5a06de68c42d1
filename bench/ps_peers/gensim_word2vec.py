"""Word vectors by gensim on the text of examples/word2vec.py, with its settings.

    python bench/ps_peers/gensim_word2vec.py [--workers 2] [--epochs 1] [--words 2000000]

Needs gensim 4.4.0 in an environment of its own. The text is written to a file first, which gensim's
threads read by themselves: its fastest way. Prints raw words per second and the share of analogies
that come out right.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import numpy as np
from datasets import Corpus, analogies, corpus
from gensim.models import Word2Vec


def main() -> None:
    """Train and print a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--words", type=int, help="take so many words only")
    options = parser.parse_args()
    data = corpus()
    count = min(options.words or len(data.ids), len(data.ids))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        write(data, count, file)
        model = Word2Vec(
            sg=1, vector_size=100, window=5, negative=5, sample=1e-3, min_count=1, seed=1,
            workers=options.workers,
        )  # fmt: skip
        model.build_vocab(corpus_file=file.name)
        begin = time.perf_counter()
        model.train(
            corpus_file=file.name, total_words=count, total_examples=model.corpus_count,
            epochs=options.epochs,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
    vectors = np.zeros((len(data.vocabulary), 100), np.float32)
    for place, word in enumerate(data.vocabulary):
        if word in model.wv:
            vectors[place] = model.wv[word]
    found = {"words/s": count * options.epochs / seconds}
    questions = analogies(data.vocabulary)
    if len(questions):
        found["analogies"] = accuracy(vectors, questions)
    print(json.dumps(found), flush=True)


def write(data: Corpus, count: int, file: tempfile._TemporaryFileWrapper[str]) -> None:
    """Write the first so many words, a line of text on a line."""
    words = np.array(data.vocabulary, object)[data.ids[:count]]
    ends = np.flatnonzero(np.diff(data.lines[:count])) + 1
    for line in np.split(words, ends):
        file.write(" ".join(line) + "\n")
    file.flush()


def accuracy(vectors: np.ndarray, questions: np.ndarray) -> float:
    """Share of analogies that come out right, as `accuracy` of examples/skipgram.py."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    right = 0
    for at in range(0, len(questions), 512):
        a, b, c, d = questions[at : at + 512].T
        scores = (unit[b] - unit[a] + unit[c]) @ unit.T
        lines = np.arange(len(a))
        for known in (a, b, c):
            scores[lines, known] = -np.inf
        right += int((scores.argmax(axis=1) == d).sum())
    return right / len(questions)


if __name__ == "__main__":
    main()
