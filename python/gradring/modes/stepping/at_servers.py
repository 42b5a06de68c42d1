"""`AtServers`: modes in which servers do the dense parameters' steps, and have their state.

One worker alone may read it. It is written once, by the first worker, while all wait for each
other: servers take a parameter's values and state together, and would lose a push in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradring.collectives.values.agreement import agreed
from gradring.errors import InvalidArgument, TimedOut
from gradring.modes.stepping.optimizer import ModeOptimizer
from gradring.modes.stepping.saved_states import dense_states, names_of, parts_of
from gradring.modes.stores.agreement import ranks_of
from gradring.optim.state import Entry, fields_of, require_kept

_CALL = "load_state_dict"


class AtServers(ModeOptimizer):
    """A part of modes' optimizers; `settle_own` is what each says."""

    def settle_own(self) -> None:
        """Wait until servers have done every step of this worker so far."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the dense parameters' optimizer state, which servers have, in new arrays.

        One worker may call it alone. It waits until this worker's steps are done, and reads
        parameter after parameter, each as it is then: while others push, with some of their steps
        and not yet with others. So call it between a `flush` of all workers and their next step;
        with ``Sync(via="ps")`` it is the state behind this worker's last step whenever it is
        called. What comes over the wire is the state and the values: 12 bytes a float with Adam.

        Returns:
            As `GeoOptimizer.state_dict`: ``dense``, for each parameter a dict under the names of
            `torch.optim`, empty where servers keep nothing yet; ``rules``, the rules' names; and
            ``rows``, empty: state of rows stays in their tables (``ps.save``).

        Raises:
            TimedOut: Servers have not done this worker's steps in time; and as in `flush`, and so
                for other errors.
        """
        return {"dense": self.read_states(), "rules": names_of(self.rules), "rows": {}}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Have servers go on from a saved state; a call of all workers together.

        All call it between the same two steps, with the same state: each waits until its steps are
        done, then for the others, and worker 0 writes. Values stay the servers', and every worker
        takes them, as in `flush`.

        Args:
            saved: What `state_dict` returned, also that of another mode.

        Raises:
            InvalidArgument: It is of other parameters or rules, or is none; or it lacks the state
                of a parameter that servers have stepped; or has that of rows. Or several workers
                have no communicator to wait for each other by. Nothing was changed.
            Mismatch: Another worker could not take it, and nothing was changed; or worker 0 could
                not write it, and some parameters may have theirs: call it again.
            TimedOut: Others did not come; as in `flush`, and so for other errors.
            Closed: After `close`.
        """

        def find() -> list[Entry]:
            dense, rows = parts_of(saved)
            if len(dense) != len(self.params):
                raise InvalidArgument(
                    f"the state is of {len(dense)} parameters, there are {len(self.params)}"
                )
            if rows:
                raise InvalidArgument(
                    f"the state has that of rows ({', '.join(map(str, rows))}), which a worker "
                    "trained in GEO; here servers have it: leave 'rows' empty if they are to go on "
                    "from what their tables have"
                )
            return dense_states(saved, self.params, self.rules)

        self.load_states(find, [f"parameter {index}" for index in range(len(self.params))])

    def read_states(self) -> list[Entry]:
        """Return for each parameter an entry of `gradring.optim.state`; see `state_dict`."""
        if not self.is_closed:  # What it has pushed is done since.
            self.require_open()
            self.settle_own()
        return self.dense.read_states(self.store, self.rules)

    def load_states(
        self,
        find: Callable[[], Sequence[Entry]],
        owners: Sequence[str],
        replaced: Collection[int] = (),
        take_rest: Callable[[], None] = lambda: None,
    ) -> None:
        """Have servers go on from a saved state; a call of all workers; see `load_state_dict`.

        Args:
            find: Returns an entry for each parameter; what it raises is raised, and is a `Mismatch`
                on the others. Talks to no rank.
            owners: What errors call the parameters.
            replaced: Parameters whose values servers are to take from worker 0, by their places.
            take_rest: Takes what else is this worker's, or raises as ``find`` does and takes none;
                called where the state itself can be taken.
        """
        self.require_open()
        ranks = self._who_wait()
        given: list[Entry] = []

        def look() -> None:
            self._settle_beside(replaced)
            # None is what torch's older SGD has without momentum.
            given.extend(
                {name: value for name, value in entry.items() if value is not None}
                for entry in find()
            )
            self._require_loadable(given, owners)
            take_rest()

        def write() -> None:
            for index, entry in enumerate(given):
                if entry or index in replaced:
                    keeps_values = index not in replaced
                    self.dense.write_state(self.store, index, entry, keeps_values=keeps_values)

        if ranks is None:
            look()
            write()
        else:
            with _explaining_lateness(lambda: bool(given)):
                agreed(ranks, _CALL, "take the state", look, self.timeout)
            is_first = ranks.rank == 0
            agreed(ranks, _CALL, "write it", write if is_first else _nothing, self.timeout)
        self.flush()

    def _settle_beside(self, places: Collection[int]) -> None:
        """Have own steps done, but parameters at these places keep what they have."""
        kept = [(self.params[place], self.params[place].copy()) for place in places]
        try:
            self.settle_own()  # After a step that timed out it takes the servers' values.
        finally:
            for param, values in kept:
                np.copyto(param, values)

    def _who_wait(self) -> Any:
        """Return the ranks that wait for each other; ``None``: there is one worker."""
        if self.workers == 1:
            return None
        ranks = ranks_of(self.workers) if self.comm is None else self.comm
        if ranks is None:
            raise InvalidArgument(
                f"load_state_dict: {self.workers} workers have to wait for each other, so that "
                "nobody pushes while one writes, and have no communicator; load the state before "
                "distributed(), a checkpoint of the servers with ps.load(), or call gr.init() on "
                "every worker first"
            )
        return ranks

    def _require_loadable(self, entries: Sequence[Entry], owners: Sequence[str]) -> None:
        parts = zip(owners, self.rules, self.params, self.dense.tables, entries, strict=True)
        for owner, rule, param, table, entry in parts:
            require_kept(rule, param, entry, owner)
            fields = fields_of(rule, 2)
            if more := entry.keys() - fields.keys() - {"step"}:
                raise InvalidArgument(
                    f"the state of {owner} has {', '.join(sorted(more))}, which servers do not "
                    f"keep with {rule}: load it into an optimizer with the settings that it is of"
                )
            if fields and not entry.keys() & fields.keys():
                steps = self.store.read_state(table)[1]
                if steps > 0:
                    raise InvalidArgument(
                        f"load_state_dict: there is no state of {owner}, and servers have stepped "
                        f"it {steps} times: it would go on from a state that is none of the one "
                        "loaded. Take what state_dict() returned in this mode, or another, after "
                        "such steps; to change settings write them into param_groups, or set_rule()"
                    )


@contextlib.contextmanager
def _explaining_lateness(is_others: Callable[[], bool]) -> Iterator[None]:
    try:
        yield
    except TimedOut as error:
        if not is_others():
            raise
        raise TimedOut(
            f"{error}. Where servers step load_state_dict() is a call of all workers, between the "
            "same two steps; nothing was changed. What one worker has alone it loads before "
            "distributed()"
        ) from error


def _nothing() -> None:
    pass
