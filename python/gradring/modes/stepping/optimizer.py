"""`ModeOptimizer`: what all modes over parameter servers have alike.

A mode is a subclass: it says when gradients go, what waits, and what a pull reads. Used from one
thread; what goes on in the background is the subclass's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from gradring.collectives.uneven import dealt_out, require_parts
from gradring.errors import Closed, InvalidArgument
from gradring.modes.parameters.dense import DenseParameters, one_for_each, require_same_place
from gradring.modes.parameters.prefetches import Prefetches
from gradring.modes.parameters.row_gradients import RowGradients, joined, listed
from gradring.modes.parameters.rows import summed
from gradring.modes.parameters.tables import Asked, ModeTable, Prefetched, read_rows
from gradring.modes.stepping import names, reminder
from gradring.modes.stepping.background import require_process
from gradring.modes.stepping.parts import Parts
from gradring.modes.stores.agreement import Workers
from gradring.modes.stores.served import store_of
from gradring.modes.stores.store import Array, Domain, Ids, Push, Store
from gradring.optim.rules import require_rule
from gradring.optim.state import Entry, require_successor
from gradring.settings import config

Batch = TypeVar("Batch")


class ModeOptimizer:
    """Trains arrays with servers' help; the base of the modes.

    Attributes:
        params: The arrays it trains.
        name: First part of the names of its tables.
        timeout: Seconds that a step may wait for others.
        is_closed: It takes no further steps.
        comm: The workers as ranks, for `uneven`; ``None``: those of `init`.
        prefetches: Rows on their way, or to be asked for after the step.
    """

    comm: Any = None
    uses_name = True  # For something on the servers that it trains by.
    domain: Domain | None = None  # Of those who wait for each other.

    def __init__(  # noqa: PLR0913 - modes pass them on by name
        self,
        params: Iterable[Array],
        rule: Any,
        ps: Any = None,
        *,
        name: str = "model",
        workers: int | None = None,
        timeout: float | None = None,
        states: Sequence[Entry] = (),
        comm: Any = None,
        generation: str | None = None,
    ) -> None:
        """Make the dense tables and give every worker the same values.

        Args:
            params: Float32 arrays of the same shapes on every worker; written in place.
            rule: Update rule of `gradring.optim`, or a sequence with one for each parameter.
            ps: What `gradring.ps.connect` returned; ``None`` connects.
            name: Of the model; tables are called ``name/0``, ``name/1``, ...
            workers: Number of workers in the job; ``None``: of ranks.
            timeout: Seconds that a step may wait for others; ``None``: `GRADRING_TIMEOUT`, or 30.
            states: Optimizer state that servers go on from, for each parameter an entry of
                `gradring.optim.state`; worker 0's counts, where servers do not have the tables yet.
            comm: The workers as ranks; ``None``: those of `init`, where the mode needs any.
            generation: What `agreed_name` has returned for these ranks, if they have asked.

        Raises:
            InvalidArgument: A parameter is no contiguous float32 array, two share memory, a rule is
                none, a state not its rule's, the timeout makes no sense, or the name is in use.
            Mismatch: Servers have another number of parameters under this name, or other shapes;
                or the others another mode or name, where the modes of all begin together.
            TimedOut: Worker 0 has not given the first values; or this mode begins together, and
                another worker's does not, or it has not come.
        """
        self.params = list(params)  # `self.dense` has the same list.
        self.name = name
        self.timeout = config.timeout_in_force(os.environ, timeout)
        self.rules = one_for_each(self.params, rule)
        for each in self.rules:
            self.require_rule(each)
        self.dense = DenseParameters(self.params, name)
        self._together = Workers(comm, workers, generation, begin=self.begins_together)
        self.comm, self.workers = self._together.comm, self._together.count
        self.store: Store = store_of(ps, self.timeout)
        names.require_free(self)
        self.tables: dict[str, ModeTable] = {}
        self.is_closed = False
        self._process = os.getpid()
        self.prefetches = Prefetches()
        self.join()
        on_servers = [self.server_rule(each) for each in self.rules]
        # Of ranks the first gives its values, whatever number it has.
        rank = self.store.rank if comm is None else comm.rank
        self.dense.make(self.store, on_servers, self.timeout, states, rank=rank)
        names.take(self)
        reminder.begin(self)

    def domain_name(self, kind: str, mode: Any) -> str:
        """Return the name of the workers' domain; see `Workers.domain_name`."""
        return self._together.domain_name(self.name, kind, self.store.rank, mode)

    def sparse_table(
        self, name: str, dim: int, rule: Any, *, init: Any = None, seed: int = 0, **settings: Any
    ) -> ModeTable:
        """Make or find a table whose rows this optimizer's mode trains.

        Asked again for a table that it has, it returns the same one.

        Args:
            name: The same on every worker.
            dim: Floats a row.
            rule: How a gradient changes a row; servers or the worker apply it, as the mode has it.
            init: Where new rows start, such as ``gr.init.Uniform(0.01)``; zeros by default.
            seed: Of the start values.
            **settings: ``entry``, ``expire_after``, ``score_decay``, ``slots`` and ``codec`` of
                `gradring.ps.ParameterServer.sparse_table`.

        Raises:
            InvalidArgument: A setting makes no sense, or not in this mode.
            Closed: After `close`.
            Mismatch: There is a table of that name with other settings.
        """
        self.require_open()
        given = {"init": init, "seed": seed, **settings}
        known = self.tables.get(name)
        if known is not None:
            known.require_same(dim, rule, given)
            return known
        require_rule(rule, "to_core")
        table = ModeTable(self, name, dim, rule, given)
        on_servers = self.server_rule(rule)
        table.table = self.store.sparse_table(name, dim, on_servers, init, seed, **settings)
        self.tables[name] = table
        return table

    def step(
        self,
        grads: Sequence[Any] | None = None,
        weight: float = 1.0,
        rows: Iterable[RowGradients] = (),
    ) -> None:
        """Do one step with these gradients; the mode says what that means.

        Args:
            grads: Mean gradient over this worker's examples for each parameter; ``None`` where
                there is none. They may be reused when `step` returns.
            weight: Number of this worker's examples; used by `Sync` alone.
            rows: ``(table, ids, gradients)`` for the sparse tables of this optimizer; gradients of
                equal ids, also those of several entries for one table, are added up.

        Raises:
            InvalidArgument: Gradients do not fit, or a table is another optimizer's; nothing was
                sent and nothing has changed.
        """
        raise NotImplementedError

    def finish_step(self) -> None:
        """Wait for what a step that timed out still waits for, if there is one; else do nothing.

        The next `step` calls it before it sends anything. Only where steps wait for other workers
        after their push is there anything to wait for (``Sync(via="ps")``, `BoundedStaleness`).

        Raises:
            TimedOut: It still did not come; says who. Nothing was sent.
        """

    def make_room(self) -> None:
        """Wait until the next `step` need not wait before it is done; see `AsyncOptimizer`.

        Raises:
            TimedOut: It still has to. Nothing was sent.
            Error: A push or pull in the background failed; as it did, or `Closed` if it timed out.
        """

    def set_rule(self, rule: Any) -> None:
        """Go on with other settings of the dense parameters' rule: a learning-rate schedule.

        They hold from the next step on. Servers have one rule for all: where workers step on their
        own, what came last holds. With `gradring.Sync` all call this between the same two steps.

        Args:
            rule: The same rule with other numbers, or a sequence with one for each parameter.

        Raises:
            InvalidArgument: It is another rule, or keeps another state; nothing was sent.
            Closed: After `close`.
            TimedOut: Servers did not answer.
        """
        rules = self.successors(rule)
        on_servers = [self.server_rule(each) for each in rules]
        self.tell_rules(list(zip(self.dense.tables, on_servers, strict=True)))
        self.rules = rules

    def successors(self, rule: Any) -> list[Any]:
        """Return a rule for each parameter, as `set_rule` takes it, and raise what that would."""
        self.require_open()
        rules = one_for_each(self.params, rule)
        for before, after in zip(self.rules, rules, strict=True):
            require_successor(before, after)
            require_same_place(self.server_rule(before), self.server_rule(after))
        return rules

    def uneven(self, batches: Iterable[Batch]) -> Iterator[Batch | None]:
        """Go through batches of which some workers may have more than others.

        In modes in which workers wait for each other at every step, one that has run out gets
        ``None`` and calls ``step(None, 0)`` until all have; in the others it simply ends.

        Args:
            batches: This worker's.
        """
        yield from batches

    @property
    def is_in_step(self) -> bool:
        """Whether the mode's workers do equally many steps."""
        return False

    @property
    def begins_together(self) -> bool:
        """Whether no worker may join later, or come back."""
        return False

    def hand_out(self, name: str, count: int, *, ahead: bool = False) -> Iterator[int]:
        """Go through the parts 0 .. count-1 of the data, each of which one worker gets.

        Where nobody waits for anybody (`Async`; `Geo` with `Sum` or `Mean`) a worker gets the next
        one when it comes for it, in one round trip: so fast workers do more, one that joins takes
        part, and all are through at about the same time. What a lost worker had taken is not handed
        out again. In the other modes, whose workers do equally many steps, part i is worker i mod
        n's: go through the batches with `uneven`, since not all need have equally many.

        Args:
            name: Of this pass, such as ``"epoch 3"``; the same on every worker, and another one for
                every pass: a name's parts are handed out once, also after a checkpoint is loaded.
            count: Parts; the same on every worker. Enough that one is no large share of the pass,
                and so few that each takes much longer than a round trip.
            ahead: Ask for the next part when one is given: nobody waits for its number behind what
                was pushed. Who leaves early, or is lost, then loses both.

        Raises:
            InvalidArgument: ``count`` is not from 1 to 32,768, or the name no string.
            Mismatch: Another worker has another ``count`` for this name.
            TimedOut: Servers did not answer; the part that was asked for may be lost.
        """
        self.require_open()
        if self.is_in_step:
            return dealt_out(name, count, self.store.rank, self.workers)
        require_parts(name, count)
        # Made anew: a checkpoint from before its table was made may have been loaded.
        return Parts(self.store, self.name).take(name, count, self.workers if ahead else None)

    def flush(self) -> None:
        """Wait until servers have everything, and take their values."""
        raise NotImplementedError

    def forget_prefetches(self) -> None:
        """Expect no rows that were asked for before a flush."""
        for table in self.tables.values():
            table.forget_prefetch()

    def close(self) -> None:
        """Bring everything to the servers and take no further part. May be called again.

        With `Sync` call it on every worker after the same number of steps. With `BoundedStaleness`
        nobody waits for this worker any more.

        Raises:
            TimedOut: As `flush`, and so for its other errors; it stays open then (`abandon`).
        """
        if not self.begin_to_close():
            return
        self.flush()
        self.abandon()
        if self.domain is not None:
            self.store.leave(self.domain)

    def begin_to_close(self) -> bool:
        """Tell whether it is open; from now on nothing reminds the user of `close`."""
        if self.is_closed:
            return False
        self.require_open()  # Not in a forked child.
        reminder.end(self)
        return True

    def __enter__(self) -> Any:
        """Return itself, to be closed in the end."""
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Close it; after an error without waiting for anybody."""
        if kind is None:
            self.close()
        else:
            self.abandon()

    # What subclasses say.

    def join(self) -> None:
        """Tell servers that this worker takes part; before tables are made."""

    def require_rule(self, rule: Any) -> None:
        """Refuse a rule of a dense parameter that the mode cannot use."""
        require_rule(rule, "to_core")

    def server_rule(self, rule: Any) -> Any:
        """Return the rule that servers apply where the user gave ``rule``."""
        return rule

    def set_table_rule(self, table: ModeTable, rule: Any) -> None:
        """Go on with other settings of a table's rule."""
        self.tell_rules([(table.table, self.server_rule(rule))])

    def tell_rules(self, rules: list[tuple[Any, Any]]) -> None:
        """Have servers use these rules for all steps from the next on, and for none before."""
        self.store.set_rules(rules)

    def read(self, asked: Sequence[Asked]) -> list[Array]:
        """Return rows of several tables, as old as the mode allows; ids may repeat."""
        # Who has left is in step with nobody any more: an evaluation reads what servers have.
        return read_rows(self.store, asked, None if self.is_closed else self.gate())

    def gate(self) -> Any:
        """Return what a pull has to wait for now; ``None``: nothing."""
        return None

    def begin_prefetch(self, coming: Sequence[Prefetched]) -> None:
        """Begin to bring rows, now or after the step; not where many are under way already."""
        self.prefetches.begin(coming, self.store, self.gate())

    def take_kept_prefetches(self) -> list[Prefetched]:
        """Return the prefetches that were kept for this step; those before it are out of date."""
        for table in self.tables.values():
            table.forget_begun_prefetch()
        return self.prefetches.take_kept()

    def abandon(self) -> None:
        """End without waiting for servers."""
        self.is_closed = True

    def left_behind(self) -> str:
        """Say what servers would lack if the process ended now; empty: nothing."""
        return ""

    # What they share.

    def require_open(self) -> None:
        """Raise `Closed` after `close`, and in a forked child."""
        if self.is_closed:
            raise Closed(f"optimizer {self.name!r} is closed: it takes no further steps")
        require_process(self._process, f"optimizer {self.name!r}")

    def move_params(self, params: Sequence[Array]) -> None:
        """Train these arrays instead, which hold what the others held."""
        self.params[:] = params

    def require_fitting(self, grads: Sequence[Any] | None) -> None:
        """Refuse dense gradients that `step` would refuse, before anything is sent.

        Raises:
            InvalidArgument: Their number or a shape does not fit the parameters.
        """
        self.dense.checked(grads)

    def require_own(self, table: Any) -> None:
        """Raise `InvalidArgument` where a table is none that `sparse_table` has returned here."""
        name = getattr(table, "name", table)
        if not (isinstance(table, ModeTable) and self.tables.get(table.name) is table):
            raise InvalidArgument(
                f"table {name!r} is none of optimizer {self.name!r}: rows are trained by the "
                f"optimizer whose sparse_table({name!r}, ...) has returned their table"
            )

    def by_table(self, rows: Iterable[RowGradients]) -> list[tuple[ModeTable, Ids, Array]]:
        """Return one entry for each table that has gradients; its arrays may be the caller's own.

        Raises:
            InvalidArgument: Shapes or dtypes do not fit, or a table is another optimizer's.
            DeviceError: An array lives on a device.
        """
        entries = listed(rows)
        for table, *_ in entries:
            self.require_own(table)
        return joined(entries)

    def row_pushes(self, rows: Iterable[RowGradients]) -> list[Push]:
        """Return one push for each table, in arrays of its own; see `by_table`."""
        return [
            Push(table.table, *summed(ids, grads), table.seen)
            for table, ids, grads in self.by_table(rows)
        ]
