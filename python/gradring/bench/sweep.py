"""Measures cases: all libraries in turn, round after round, and the plain link beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gradring.bench.cases import Link, link_cpu_per_gb, lower_bound, message_bytes
from gradring.bench.ceiling import Ceiling
from gradring.bench.groups import Group, GroupFailed
from gradring.bench.options import Options
from gradring.bench.peers.pattern import Case
from gradring.bench.peers.timing import Reply
from gradring.bench.statistics import Figures, Ratio, Samples, figures_of, ratio_of

_MOST_CALLS = 2000  # In a batch.

Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One case's figures.

    Attributes:
        case: What was measured.
        algorithm: Ours.
        link: The plain link at this size; ``None`` in a world of one.
        bound: Seconds that no algorithm can beat on that link.
        link_cpu: CPU s/GB of plain TCP streams of the bytes that must move; ``None`` elsewhere.
        figures: By library; ours first.
        ratios: By peer.
        unsupported: Why a peer has no figures here.
    """

    case: Case
    algorithm: str
    link: Link | None
    bound: float
    figures: dict[str, Figures]
    ratios: dict[str, Ratio]
    unsupported: dict[str, str] = field(default_factory=dict)
    link_cpu: float | None = None


class Sweep:
    """Measures one case after another on the groups it is given."""

    def __init__(self, ours: Group, peers: Sequence[Group], options: Options, is_tcp: bool) -> None:
        """Measure nothing yet.

        Args:
            ours: Our own ranks.
            peers: The others, which may get fewer: one that fails is left out from then on.
            options: How long and how often.
            is_tcp: What the plain link is: TCP streams, or copies in memory.
        """
        self.dropped: dict[str, str] = {}
        self._ours = ours
        self._peers = list(peers)
        self._options = options
        self._ceiling = Ceiling(ours, is_tcp)

    def rejoin(self, peer: Group) -> None:
        """Measure a peer again that was started anew after it had failed."""
        self.dropped.pop(peer.name, None)
        self._peers.append(peer)

    def measure(self, case: Case, say: Say) -> Row:
        """Measure one case on all libraries.

        Raises:
            GroupFailed: Our own ranks failed.
        """
        unsupported: dict[str, str] = {}
        algorithm = ""
        samples: dict[str, Samples] = {}
        calls: dict[str, int] = {}
        for group in [self._ours, *self._peers]:
            say(f"{group.name} warm-up")
            prepared = self._prepare(group, case)
            if "unsupported" in prepared:
                unsupported[group.name] = prepared["unsupported"]
                continue
            algorithm = algorithm or prepared["algorithm"]
            warm = self._ask(group, do="run", calls=self._options.warmup, check=False)
            calls[group.name] = self._calls(warm)
            samples[group.name] = Samples()
        for number in range(self._options.rounds):
            what = f"round {number + 1} of {self._options.rounds}"
            say(f"link {what}")
            self._ceiling.measure(message_bytes(case))
            for group in [self._ours, *self._peers]:
                if group.name not in samples or group.name in self.dropped:
                    continue
                say(f"{group.name} {what}")
                batch = calls[group.name]
                answers = self._ask(group, do="run", calls=batch, check=self._options.is_checked)
                if answers:
                    samples[group.name].add(answers)
        return self._row(case, algorithm, samples, unsupported)

    def _prepare(self, group: Group, case: Case) -> Reply:
        fields = dataclasses.asdict(case)
        answers = self._ask(group, do="prepare", **fields)
        refused = [answer for answer in answers if "unsupported" in answer]
        return (refused or answers or [{"unsupported": "it failed"}])[0]

    def _row(
        self,
        case: Case,
        algorithm: str,
        samples: dict[str, Samples],
        unsupported: dict[str, str],
    ) -> Row:
        size = self._ours.size
        if self._ours.name not in samples:
            raise GroupFailed(f"{case.op}: {unsupported.get(self._ours.name, 'no figures')}")
        figures = {
            name: figures_of(case, size, found)
            for name, found in samples.items()
            if name not in self.dropped
        }
        ours = figures[self._ours.name]
        link = self._ceiling.link(message_bytes(case))
        return Row(
            case=case,
            algorithm=algorithm,
            link=link,
            bound=0.0 if link is None else lower_bound(case, size, link),
            figures=figures,
            ratios={
                name: ratio_of(ours, found)
                for name, found in figures.items()
                if name != self._ours.name
            },
            unsupported=unsupported,
            link_cpu=None if link is None else link_cpu_per_gb(case.op, size, link),
        )

    def _ask(self, group: Group, **command: object) -> list[Reply]:
        """Ask; a peer that fails is dropped and answers nothing."""
        try:
            return group.ask(**command)
        except GroupFailed as failure:
            if group is self._ours:
                raise
            self.dropped[group.name] = str(failure)
            self._peers.remove(group)
            group.close()
            return []

    def _calls(self, warm: list[Reply]) -> int:
        if not warm:
            return 1
        # A call takes as long as its slowest rank; the fastest call says how many fit.
        seconds = min(max(times) for times in zip(*(a["ns"] for a in warm), strict=True)) * 1e-9
        batch = self._options.seconds / self._options.rounds
        return max(1, min(_MOST_CALLS, int(batch / max(seconds, 1e-7))))
