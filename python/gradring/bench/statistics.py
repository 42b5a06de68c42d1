"""From times of single calls to the figures of a row.

The time of an operation is that of a whole batch divided by its calls, as in nccl-tests: the single
calls of a rank that may run ahead, such as a broadcast's root, would say too little. Percentiles
are of single calls, each taken on the rank where it lasted longest. Libraries are compared round by
round: rounds lie close together in time, so that a busy minute of the machine hits all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gradring.bench.cases import bus_factor, message_bytes
from gradring.bench.peers.pattern import Case
from gradring.bench.peers.timing import Reply


@dataclass
class Samples:
    """What was measured of one library on one case.

    Attributes:
        calls: Seconds of each call.
        batches: Seconds a call from the length of the whole batch, by round.
        cpu_seconds: Of all ranks in all batches.
        wrong: Elements that were not right, over all ranks and rounds.
    """

    calls: list[float] = field(default_factory=list)
    batches: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    wrong: int = 0

    def add(self, answers: Sequence[Reply]) -> None:
        """Take one round's answers of all ranks."""
        times = np.array([answer["ns"] for answer in answers], np.float64) * 1e-9
        self.calls += [float(longest) for longest in times.max(axis=0)]
        self.batches.append(float(times.sum(axis=1).max()) / times.shape[1])
        self.cpu_seconds += sum(answer["cpu_ns"] for answer in answers) * 1e-9
        self.wrong += sum(answer["wrong"] for answer in answers)


@dataclass(frozen=True)
class Figures:
    """A library's figures on one case.

    Attributes:
        time: Seconds a call: median over the rounds of a batch's time divided by its calls.
        p50: Seconds that half of the single calls took at most.
        p99: Seconds that 99 % of them took at most.
        algbw: Message bytes per second of ``time``, in GB/s (10^9).
        busbw: ``algbw`` times the operation's factor.
        cpu_per_gb: CPU seconds of all ranks for a message of 10^9 bytes; ``None`` without bytes.
        wrong: Wrong elements.
        calls: Calls that were timed.
        rounds: Seconds a call, by round.
    """

    time: float
    p50: float
    p99: float
    algbw: float
    busbw: float
    cpu_per_gb: float | None
    wrong: int
    calls: int
    rounds: tuple[float, ...]


@dataclass(frozen=True)
class Ratio:
    """A peer's time over ours, round by round: above 1 we are faster.

    Attributes:
        median: Over the rounds.
        low: Smallest of a round.
        high: Largest of a round.
        won: Share of the rounds in which we were faster.
    """

    median: float
    low: float
    high: float
    won: float


def figures_of(case: Case, world_size: int, samples: Samples) -> Figures:
    """Return the figures."""
    calls = np.array(samples.calls)
    size = message_bytes(case)
    time = float(np.median(samples.batches))
    algbw = size / time / 1e9
    moved = size * calls.size / 1e9
    return Figures(
        time=time,
        p50=float(np.median(calls)),
        p99=float(np.percentile(calls, 99)),
        algbw=algbw,
        busbw=algbw * bus_factor(case.op, world_size),
        cpu_per_gb=samples.cpu_seconds / moved if moved else None,
        wrong=samples.wrong,
        calls=int(calls.size),
        rounds=tuple(samples.batches),
    )


def ratio_of(ours: Figures, peer: Figures) -> Ratio:
    """Compare a peer with us."""
    pairs = np.array(peer.rounds) / np.array(ours.rounds)
    return Ratio(
        median=float(np.median(pairs)),
        low=float(pairs.min()),
        high=float(pairs.max()),
        won=float(np.mean(pairs > 1.0)),
    )
