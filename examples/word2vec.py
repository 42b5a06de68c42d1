"""Word vectors by skip-gram with negative sampling, in any mode, on one worker or many.

    python examples/word2vec.py
    gradring run -n 2 --servers 1 examples/word2vec.py --mode geo --k-steps 100

Trains on the text of `datasets.corpus` and answers analogy questions, by gensim's protocol; with
--synthetic on a made stream of Zipf-distributed pairs over 100,000 words. Of text of your own:

    gradring run -n 4 --servers 1 examples/word2vec.py --mode geo --text mine.txt --save vectors.txt

The compute is PyTorch on one thread a worker (`skipgram`), and where the vectors live is the mode's
(`word2vec_modes`). --out FILE writes what `curves.py` draws.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from curves import Recorder, label, text
from datasets import (
    Corpus,
    Pairs,
    analogies,
    are_alike,
    corpus,
    find,
    folders,
    part_batches,
    run_number,
    with_next,
    write_vectors,
    zipf_pairs,
)
from options import Parser, at_least, new_file, readable
from skipgram import Batch, Stream, Windows, accuracy
from word2vec_modes import Model, make_model

import gradring as gr
from gradring.progress import Progress

MODES = ("local", "apart", "sync", "sync-ps", "bounded", "async", "geo", "hybrid")
POINTS = 200  # On the curve.
# What a worker takes at a time, least and most, where nobody waits for anybody. Of a part of the
# text up to a batch is left over: half a percent of the longest.
PART_BATCHES = {"words": (8, 190), "pairs": (1, 8)}
UNSEEN = 20_480  # Pairs of the stream that are for testing.


def parse() -> argparse.Namespace:
    parser = Parser("Word vectors, on one worker or many.")
    add = parser.add_argument
    add(
        "--mode",
        choices=MODES,
        default="local",
        help="local: one process; apart: nobody hears of the others",
    )
    add("--k-steps", type=at_least(1), default=100, help="geo: steps between two exchanges")
    add("--rare-every", type=at_least(1), default=1, help="geo: exchanges that a rare row may wait")
    add("--outer", choices=("sum", "mean", "nesterov"), default="sum", help="geo: what servers do")
    add("--staleness", type=at_least(0), default=4, help="bounded: steps ahead of the slowest")
    add("--dim", type=at_least(1), default=100, help="floats of a vector")
    add("--epochs", type=at_least(1), default=5)
    add("--rule", choices=("sgd", "adagrad"), default="sgd", help="how a gradient changes a row")
    add("--lr", type=float, default=0.025, help="with sgd it falls in a straight line")
    add("--blocks", type=at_least(1), default=8, help="text: blocks of 32 words in a step")
    add("--words", type=at_least(1), help="text: take so many words only")
    add(
        "--text",
        type=readable,
        nargs="+",
        metavar="FILE",
        help="text of your own in UTF-8, .gz too, which all workers read; a line is a sentence",
    )
    add(
        "--split",
        action="store_true",
        help="text of your own: words are what spaces separate; else runs of letters, without case",
    )
    add("--min-count", type=at_least(1), default=5, help="text: rarer words are left out")
    add("--save", type=new_file, help="write the words' vectors there, in word2vec's text format")
    add("--synthetic", action="store_true", help="the made stream instead of text")
    add("--examples", type=at_least(1), default=1_024_000, help="stream: pairs, over all workers")
    add("--batch", type=at_least(1), default=1024, help="stream: pairs in a step")
    add("--seed", type=at_least(0), default=0)
    add("--out", type=new_file, help="write the curve and the outcome there, as JSON lines")
    options = parser.parse_args()
    if options.mode == "geo" and options.outer == "nesterov" and options.rare_every > 1:
        parser.error("--outer nesterov makes all replicas equal each time: --rare-every stays 1")
    if options.synthetic and (options.text or options.save):
        parser.error("--text and --save are about words, and the stream of --synthetic has none")
    for path in (options.save, options.out):
        if path is not None and path.resolve() in [text.resolve() for text in options.text or ()]:
            parser.error(f"{path} is the text, which would be lost")
    if options.split and not options.text:
        parser.error("--split is for --text")
    return options


class Work:
    """What there is to train on, and which part of it is this worker's."""

    def __init__(self, options: argparse.Namespace, comm: gr.Communicator) -> None:
        self.options, self.comm = options, comm
        self.run = run_number(comm)
        self.data: Corpus | Pairs
        self.examples: Windows | Stream
        if options.synthetic:
            self.unit, self.title = "pairs", "skip-gram on a Zipf stream"
            self.size = options.examples
            self.data = zipf_pairs(options.epochs * self.size + UNSEEN, seed=options.seed)
            self.examples = Stream(self.data, options.batch)
            self.words = self.data.rows
        else:
            self.data = corpus(options.min_count, files=options.text or (), split=options.split)
            self.unit, self.title = "words", f"skip-gram on {self.data.name}"
            self.size = min(options.words or len(self.data.ids), len(self.data.ids))
            if not self.data.vocabulary:
                raise SystemExit(
                    f"no word occurs {options.min_count} times in {self.data.name}: --min-count 1 "
                    "takes all"
                )
            self.examples = Windows(self.data.counts, blocks=options.blocks)
            self.words = len(self.data.vocabulary)
        if self.size < self.examples.batch * comm.world_size:
            raise SystemExit(
                f"{self.size:,} {self.unit} are too few for {comm.world_size} workers with "
                f"{self.examples.batch:,} in a step: nothing would be trained"
            )

    def batches(self, epoch: int, optimizer: Any) -> Iterator[tuple[Batch, int]]:
        """This worker's batches of an epoch, and how many examples all workers have had by then.

        Workers that do not wait for each other come for a part when they are through with the one
        before; else each has one large part, and all have equally many batches.
        """
        rank, workers = self.comm.rank, self.comm.world_size
        if optimizer is not None and not optimizer.is_in_step:
            batches = self.size // self.examples.batch
            part_size = self.examples.batch * part_batches(
                batches, workers, *PART_BATCHES[self.unit]
            )
            parts, name = -(-self.size // part_size), f"run {self.run}, epoch {epoch}"
            for part in optimizer.hand_out(name, parts, ahead=True):
                begin = part * part_size
                done = epoch * self.size + begin
                for batch in self.part(epoch, begin, min(begin + part_size, self.size))[1]:
                    yield batch, done
                    done += batch.examples
            return
        first, last = (self.size * place // workers for place in (rank, rank + 1))
        count, batches = self.part(epoch, first, last)
        count = int(self.comm.all_reduce(np.array([count]), op="min")[0])
        if not count:
            raise SystemExit("too few words for a step: frequent ones are thinned out first")
        for step, batch in enumerate(itertools.islice(batches, count)):
            # Told by steps and not by words, of which each worker's batches have other numbers: the
            # rate goes by it, and in sync all workers have to take the same one.
            yield batch, epoch * self.size + self.size * step // count

    def part(self, epoch: int, first: int, last: int) -> tuple[int, Iterator[Batch]]:
        """The number of batches in a part of the examples, and they."""
        if isinstance(self.examples, Stream):
            return self.examples.epoch(epoch * self.size + first, epoch * self.size + last)
        assert isinstance(self.data, Corpus)
        random = np.random.default_rng([self.options.seed, epoch, first])
        return self.examples.epoch(self.data.ids[first:last], self.data.lines[first:last], random)

    def quality(self, model: Model) -> dict[str, float]:
        """How good the vectors are: right analogies, or the loss of pairs nobody trained on."""
        inputs, outputs = model.inputs, model.outputs
        if isinstance(self.examples, Stream):
            assert isinstance(self.data, Pairs)
            known = self.options.epochs * self.size
            losses = [
                self.examples.progress(b, inputs[b.centres], outputs[b.outputs], with_loss=True)[2]
                for b in self.examples.epoch(known, known + UNSEEN)[1]
            ]
            return {"held-out loss": float(np.mean(losses))}
        assert isinstance(self.data, Corpus)
        questions = analogies(self.data.vocabulary)
        if not len(questions):
            return {}
        return {"analogies": accuracy(inputs, questions), "questions": len(questions)}

    def tell(self) -> None:
        """Say which text is trained on, and why no analogies will be asked."""
        if not isinstance(self.data, Corpus):
            return
        print(f"text: {self.data.name}, {self.size:,} words of a vocabulary of {self.words:,}")
        places = ", ".join(map(str, folders("text")))
        if not self.options.text and self.data.name == "Python's help texts":
            print(f"no other text in {places}")
        if find("text", "questions-words.txt.gz") is None:
            print(f"no analogies are asked: no questions-words.txt.gz in {places}")
        elif not len(analogies(self.data.vocabulary)):
            print("no analogies are asked: of none are all four words in the text")


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    comm = gr.init()
    if options.mode == "local" and comm.world_size > 1:
        raise SystemExit("--mode local is for one process; with several choose another")
    work = Work(options, comm)
    if comm.rank == 0:
        work.tell()
    model = make_model(options, comm, work.examples, work.words)
    what = {
        "mode": options.mode, "workers": comm.world_size, "unit": work.unit, "title": work.title,
    }  # fmt: skip
    recorder = Recorder(options.out if comm.rank == 0 else None, **what)
    seconds = train(work, model, recorder)
    total = work.size * options.epochs
    outcome = {work.unit: total, "seconds": seconds, f"{work.unit}/s": total / seconds}
    outcome["talking"] = model.talk.seconds / seconds
    outcome["alike"] = are_alike(comm, [model.inputs.numpy()])  # Everybody has flushed.
    if comm.rank == 0:
        outcome |= work.quality(model)
        shown = ", ".join(f"{name} {text(value)}" for name, value in outcome.items())
        print(f"{label(what)}: {shown}")
        if options.save is not None:
            assert isinstance(work.data, Corpus)
            write_vectors(options.save, work.data.vocabulary, model.inputs.numpy())
            print(f"vectors of {work.words:,} words: {options.save}")
    recorder.end(**outcome)
    comm.barrier()
    model.close()
    comm.close()


def train(work: Work, model: Model, recorder: Recorder) -> float:
    """Train all epochs, and return the seconds that it took until every worker was through."""
    options, comm = work.options, work.comm
    model.flush()
    model.talk.seconds = 0
    comm.barrier()
    begin, losses, next_point = time.perf_counter(), [], 0.0
    mean: float | None = None
    total = work.size * options.epochs
    with Progress(POINTS, rank=comm.rank, label=f"word2vec {options.mode}") as progress:
        for epoch in range(options.epochs):
            batches = with_next(work.batches(epoch, model.optimizer))
            for step, ((batch, done), coming) in enumerate(batches):
                lr = options.lr * (max(0.01, 1 - done / total) if options.rule == "sgd" else 1)
                with_loss = step % 10 == 0
                loss = model.train(batch, lr, coming and coming[0], with_loss=with_loss)
                if not with_loss:
                    continue
                losses.append(loss)
                if done >= next_point:
                    mean = float(np.mean(losses))
                    recorder.point(time.perf_counter() - begin, done, loss=mean)
                    steps = POINTS * done // total - progress.steps
                    progress.advance(examples=done - progress.examples, loss=mean, steps=steps)
                    losses, next_point = [], next_point + total / POINTS
            model.flush()
        # Others may have done the last part, and under load nearly all.
        mean = float(np.mean(losses)) if losses else mean
        if mean is not None:
            recorder.point(time.perf_counter() - begin, total, loss=mean)
        left = POINTS - progress.steps
        progress.advance(examples=total - progress.examples, loss=mean, steps=left)
    comm.barrier()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
