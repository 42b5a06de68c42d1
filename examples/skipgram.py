"""Skip-gram with negative sampling (Mikolov et al. 2013) as matrix products, in PyTorch on one CPU.

Two ways to take a step of plain SGD, both on two float32 matrices (words, dim), in place:

* `Windows`: the words of running text. Blocks of neighbouring words are multiplied with the words
  around them as one small matrix, of which the windows are a band. A block shares its negative
  words, each weighted so that every pair has `negative` of them (Ji et al. 2016, arXiv:1604.04661):
  a few rows are read and written where drawing them pair by pair would touch hundreds.
* `Stream`: ready-made pairs, each with negatives of its own.

A batch is taken from the vectors of its rows to what is to be added to them; where the matrices
live is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from datasets import Ids, Pairs
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """What one step reads and writes.

    Attributes:
        centres: Rows of the input matrix, int64 (blocks * block,).
        outputs: Rows of the output matrix, int64 (blocks * (block + 2 window + shared),): a block's
            words with their neighbours, then its negatives.
        examples: Raw words (text) or pairs (stream) that it takes care of.
        pairs: 1 where a centre and an output are a pair, float32 (blocks, block, block + 2 window);
            a stream has none.
    """

    centres: Tensor
    outputs: Tensor
    examples: int
    pairs: Tensor | None = None

    @property
    def ids(self) -> tuple[Tensor, Tensor]:
        """Both."""
        return self.centres, self.outputs


class Windows:
    """Batches of running text, cut into blocks."""

    def __init__(
        self,
        counts: npt.NDArray[np.int64],
        *,
        window: int = 5,
        negative: int = 5,
        sample: float = 1e-3,
        block: int = 32,
        blocks: int = 8,
        shared: int = 32,
    ) -> None:
        """Prepare the tables to draw from.

        Args:
            counts: How often each word occurs.
            window: Most words to either side; each centre draws its own from 1 to this.
            negative: Negatives a pair counts.
            sample: Frequency above which words are thinned out, as in word2vec.
            block: Words in a block.
            blocks: Blocks in a batch.
            shared: Negatives that a block draws, from the counts to the power 0.75.
        """
        self.window, self.negative, self.shared = window, negative, shared
        self.block, self.blocks = block, blocks
        self.batch = block * blocks  # Words that are left when they are thinned out.
        share = counts / counts.sum()
        self._keep = np.minimum(1, np.sqrt(sample / share) + sample / share).astype(np.float32)
        power = np.cumsum(counts**0.75)
        self._cumulated = power / power[-1]
        offsets = torch.arange(block + 2 * window) - window - torch.arange(block)[:, None]
        self._distances = offsets.abs().to(torch.int8)
        self._distances[offsets == 0] = 127  # A word is not its own neighbour.

    def epoch(
        self, ids: npt.NDArray[np.int32], lines: npt.NDArray[np.int32], random: np.random.Generator
    ) -> tuple[int, Iterator[Batch]]:
        """Go through text once.

        Args:
            ids: Its words.
            lines: The line of each; windows do not cross lines.
            random: What is drawn with.

        Returns:
            The number of batches, and they; the last words, too few for one, are left out.
        """
        kept = np.flatnonzero(random.random(len(ids), dtype=np.float32) < self._keep[ids])
        count = len(kept) // (self.block * self.blocks)
        return count, self._batches(count, ids, lines, kept, random)

    def _batches(
        self,
        count: int,
        ids: npt.NDArray[np.int32],
        lines: npt.NDArray[np.int32],
        kept: npt.NDArray[np.int64],
        random: np.random.Generator,
    ) -> Iterator[Batch]:
        w, n, around = self.window, self.block * self.blocks, self.block + 2 * self.window
        words = torch.from_numpy(np.pad(ids[kept].astype(np.int64), w))
        line = torch.from_numpy(np.pad(lines[kept], w, constant_values=-1))
        raw = np.append(0, kept + 1)
        for start in range(0, count * n, n):
            end = start + n
            lines_around = line[start : end + 2 * w].unfold(0, around, self.block)
            reach = random.integers(1, w, (self.blocks, self.block, 1), np.int8, endpoint=True)
            own = line[start + w : end + w].view(self.blocks, self.block, 1)
            pairs = (self._distances <= torch.from_numpy(reach)) & (own == lines_around[:, None])
            drawn = np.searchsorted(self._cumulated, random.random((self.blocks, self.shared)))
            rows = [words[start : end + 2 * w].unfold(0, around, self.block)]
            rows.append(torch.from_numpy(drawn))
            yield Batch(
                words[start + w : end + w],
                torch.cat(rows, 1).reshape(-1),
                int(raw[end] - raw[start]),
                pairs.float(),
            )

    def progress(
        self,
        batch: Batch,
        inputs: Tensor,
        outputs: Tensor,
        scale: float = 1.0,
        *,
        with_loss: bool = False,
        into: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, float]:
        """Compute what a step of SGD adds to the rows of a batch.

        Args:
            batch: From `epoch`.
            inputs: Its centres' vectors, float32 (centres, dim).
            outputs: Its outputs' vectors, float32 (outputs, dim).
            scale: The learning rate; with -1 it is the gradient.
            with_loss: Compute the loss as well.
            into: Where both results go, as `inputs` and `outputs`; None: into tensors of their own.

        Returns:
            Minus the gradient of the sum of the pairs' losses times `scale`, for `inputs` and for
            `outputs`, and the mean loss of a pair with its negatives (0 if not wanted).
        """
        assert batch.pairs is not None
        to_inputs, to_outputs = into or (torch.empty_like(inputs), torch.empty_like(outputs))
        dim, width = inputs.shape[1], batch.pairs.shape[2]
        h = inputs.view(self.blocks, self.block, dim)
        u = outputs.view(self.blocks, width + self.shared, dim)
        g = torch.bmm(h, u.transpose(1, 2)).sigmoid_()
        weights = batch.pairs.sum(2, keepdim=True).mul_(self.negative / self.shared)
        loss = 0.0
        if with_loss:
            good = batch.pairs * g[:, :, :width].clamp_min(1e-9).log()
            bad = weights * (1 - g[:, :, width:]).clamp_min(1e-9).log()
            loss = -float((good.sum() + bad.sum()) / batch.pairs.sum().clamp_min(1))
        torch.addcmul(batch.pairs, batch.pairs, g[:, :, :width], value=-1, out=g[:, :, :width])
        g[:, :, width:].mul_(-weights)
        g.mul_(scale)
        torch.bmm(g, u, out=to_inputs.view_as(h))
        torch.bmm(g.transpose(1, 2), h, out=to_outputs.view_as(u))
        return to_inputs, to_outputs, loss


class Stream:
    """Batches of a stream of pairs."""

    def __init__(self, pairs: Pairs, batch: int) -> None:
        self._pairs = pairs
        self.batch = batch
        self._labels = torch.zeros(1, pairs.outputs.shape[1])
        self._labels[:, 0] = 1

    def epoch(self, first: int, last: int) -> tuple[int, Iterator[Batch]]:
        """Go through pairs `first` to `last`; as `Windows.epoch`."""
        starts = range(first, last - self.batch + 1, self.batch)
        centres = torch.from_numpy(self._pairs.centres)
        outputs = torch.from_numpy(self._pairs.outputs)
        return len(starts), (
            Batch(centres[at : at + n], outputs[at : at + n].reshape(-1), n)
            for at, n in ((start, self.batch) for start in starts)
        )

    def progress(
        self,
        batch: Batch,
        inputs: Tensor,
        outputs: Tensor,
        scale: float = 1.0,
        *,
        with_loss: bool = False,
        into: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, float]:
        """As `Windows.progress`."""
        assert len(batch.centres) == len(inputs)
        to_inputs, to_outputs = into or (torch.empty_like(inputs), torch.empty_like(outputs))
        h = inputs.unsqueeze(1)
        u = outputs.view(len(inputs), -1, inputs.shape[1])
        scores = (u * h).sum(2)
        loss = 0.0
        if with_loss:
            signs = 2 * self._labels - 1
            loss = -float(torch.nn.functional.logsigmoid(scores * signs).sum()) / len(inputs)
        g = torch.sub(self._labels, scores.sigmoid_(), out=scores).mul_(scale)
        torch.bmm(g.unsqueeze(1), u, out=to_inputs.unsqueeze(1))
        torch.mul(g.unsqueeze(2), h, out=to_outputs.view_as(u))
        return to_inputs, to_outputs, loss


def accuracy(vectors: Tensor, questions: Ids) -> float:
    """Share of analogies that come out right: the word nearest to b - a + c is d.

    By cosine, all words being candidates but a, b and c (Mikolov et al. 2013; gensim's
    `evaluate_word_analogies`).

    Args:
        vectors: float32 (words, dim).
        questions: int64 (n, 4).
    """
    unit = torch.nn.functional.normalize(vectors)
    right = 0
    for a, b, c, d in (part.unbind(1) for part in torch.from_numpy(questions).split(512)):
        scores = torch.nn.functional.normalize(unit[b] - unit[a] + unit[c]) @ unit.T
        for known in (a, b, c):
            scores.scatter_(1, known[:, None], -2.0)
        right += int((scores.argmax(1) == d).sum())
    return right / max(1, len(questions))
