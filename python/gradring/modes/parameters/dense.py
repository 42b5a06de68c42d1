"""Dense parameters that live in tables of parameter servers: one table for each.

The tables are called ``<name>/<parameter>``. The first time, worker 0's values go there, with the
optimizer state that it has, and a table ``<name>/ready`` then says how many they are; where the
servers have them already (a worker joins, or a checkpoint was loaded), theirs come back.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradring.errors import InvalidArgument, Mismatch, TimedOut
from gradring.modes.stores.store import Array, Gate, Pull, Push, Store
from gradring.modes.stores.strangers import why_no_worker
from gradring.optim import Sum
from gradring.optim.gradients import fitting_gradients, require_numpy
from gradring.optim.state import Entry, entry_of_fields

_POLL_SECONDS = 0.01


class DenseParameters:
    """The arrays of a model and their tables. Used by the training thread.

    Attributes:
        params: The user's arrays, written in place by `pull`.
        tables: The store's, one for each.
        seen: What the last pull said of each, for the pushes computed on it.
    """

    def __init__(self, params: list[Array], name: str) -> None:
        """Check the arrays; nothing is sent.

        Args:
            params: Float32, contiguous, writeable, none empty. The list is kept: its owner may put
                other arrays there that hold what the first ones held.
            name: Of the model.

        Raises:
            InvalidArgument: One is something else, or two share memory.
        """
        self.params = params
        self.names = [f"{name}/{index}" for index in range(len(self.params))]
        for own_name, param in zip(self.names, self.params, strict=True):
            _require_servable(own_name, param)
        _require_apart(self.names, self.params)
        self._shapes = [param.shape for param in self.params]
        self._dtypes = [param.dtype for param in self.params]
        self.tables: list[Any] = []
        self.seen: list[Any] = []
        self._name = name

    def make(
        self,
        store: Store,
        rules: Sequence[Any],
        timeout: float,
        states: Sequence[Entry] = (),
        *,
        rank: int,
    ) -> None:
        """Make the tables and give every worker the same values.

        Args:
            store: The servers.
            rules: One for each parameter.
            timeout: Seconds to wait for worker 0.
            states: Of each parameter, to go on from; unused where the servers have the tables.
            rank: Among the workers.

        Raises:
            InvalidArgument: A state is not of its rule.
            Mismatch: The servers have another number of parameters, or other shapes or rules;
                nothing was sent.
            TimedOut: Worker 0 has not given its values in ``timeout`` seconds.
        """
        if not self.params:
            return
        mark = store.dense_table(f"{self._name}/ready", (1,), Sum())
        count = self._wait_for_first(store, mark, timeout, rank)
        if count not in (0, len(self.params)):
            # A table more would be made of zeros, and these taken for the model's values.
            raise Mismatch(
                f"model {self._name!r}: worker {rank} has {len(self.params)} dense "
                f"parameters, and {count} are on the servers, of worker 0 or of an earlier run; "
                "give the same ones on every worker and in every run, or the model another name"
            )
        self.tables = [
            store.dense_table(name, param.shape, rule)
            for name, param, rule in zip(self.names, self.params, rules, strict=True)
        ]
        if count == 0:
            entries = states or [{}] * len(self.params)
            for table, param, entry in zip(self.tables, self.params, entries, strict=True):
                store.write(table, param, entry)
            store.write(mark, np.full(1, len(self.params), np.float32))
        self.seen = store.pull(self.pulls(self.params))

    def _wait_for_first(self, store: Store, mark: Any, timeout: float, rank: int) -> int:
        """Return how many parameters servers have; 0: none, and worker 0, this one, gives them."""
        marks = np.zeros(1, np.float32)
        deadline = time.monotonic() + timeout
        while True:
            store.pull([Pull(mark, None, marks)])
            if marks[0] > 0 or rank == 0:
                return int(marks[0])
            if time.monotonic() > deadline:
                why = why_no_worker(rank)
                raise TimedOut(
                    f"worker 0 has not given the first values of model {self._name!r} in "
                    f"{timeout:g} s; is it running?" + ("" if why is None else f" And {why}")
                )
            time.sleep(_POLL_SECONDS)

    def pulls(self, outs: Sequence[Array]) -> list[Pull]:
        """Return what to ask for to fill ``outs``."""
        return [Pull(table, None, out) for table, out in zip(self.tables, outs, strict=True)]

    def pull(self, store: Store, gate: Gate | None = None) -> None:
        """Take the servers' values now."""
        if self.tables:
            self.seen = store.pull(self.pulls(self.params), gate)

    def read_states(self, store: Store, rules: Sequence[Any]) -> list[Entry]:
        """Return what servers keep of each beside its values: entries of `gradring.optim.state`.

        In new arrays; of one parameter after the other, each as it is when it is read.

        Args:
            store: The servers.
            rules: One for each parameter.
        """
        entries = []
        for table, rule, param in zip(self.tables, rules, self.params, strict=True):
            fields, steps = store.read_state(table)
            shaped = {name: field.reshape(param.shape) for name, field in fields.items()}
            entries.append(entry_of_fields(rule, shaped, steps))
        return entries

    def write_state(self, store: Store, index: int, entry: Entry, *, keeps_values: bool) -> None:
        """Replace what servers keep of one parameter; nobody may push meanwhile.

        Args:
            store: The servers.
            index: Which one.
            entry: Of `gradring.optim.state`; where it is empty the state begins anew.
            keeps_values: The servers' values stay; else they become the parameter's.
        """
        values = self.params[index]
        if keeps_values:
            values = np.empty_like(values)
            store.pull([Pull(self.tables[index], None, values)])
        store.write(self.tables[index], values, entry)

    def checked(self, grads: Sequence[Any] | None) -> list[Array | None]:
        """Return the gradients as contiguous float32 arrays, the user's own where they are.

        Raises:
            InvalidArgument: Their number, a shape or a dtype does not fit.
            DeviceError: One lives on a device.
        """
        if grads is None:
            return [None] * len(self.params)
        fitting = fitting_gradients(grads, self._shapes, self._dtypes)
        # Not ascontiguousarray: that makes a number an array of one.
        return [None if grad is None else np.asarray(grad, np.float32, "C") for grad in fitting]

    def pushes(self, grads: Sequence[Any] | None) -> list[Push]:
        """Return a push for each parameter that has a gradient; see `checked`."""
        return [
            Push(table, None, grad, seen)
            for table, grad, seen in zip(self.tables, self.checked(grads), self.seen, strict=True)
            if grad is not None
        ]


def _require_servable(name: str, param: Any) -> None:
    require_numpy(param, name)
    if param.dtype != np.float32:
        raise InvalidArgument(f"{name} is {param.dtype}; servers hold float32 arrays")
    if param.size == 0:
        raise InvalidArgument(f"{name} is empty; leave it out")
    if not (param.flags.writeable and param.flags.c_contiguous):
        raise InvalidArgument(f"{name} must be contiguous and writeable: training writes it")


def one_for_each(params: Sequence[Array], rule: Any) -> list[Any]:
    """Return a rule for each parameter.

    Args:
        params: What they are for.
        rule: One for all, or a sequence of them.

    Raises:
        InvalidArgument: The sequence has another length.
    """
    if not isinstance(rule, Sequence):
        return [rule] * len(params)
    if len(rule) != len(params):
        raise InvalidArgument(f"{len(rule)} rules for {len(params)} parameters")
    return list(rule)


def _require_apart(names: Sequence[str], params: Sequence[Array]) -> None:
    # Each has a table of its own, and what comes from one would undo the steps of the other.
    spans = sorted(
        (param.ctypes.data, param.ctypes.data + param.nbytes, index)
        for index, param in enumerate(params)
        if param.nbytes > 0
    )
    for (_, end, one), (begin, _, other) in itertools.pairwise(spans):
        if begin < end:
            first, second = sorted((one, other))
            raise InvalidArgument(
                f"{names[first]} and {names[second]} share memory: give an array once, and two "
                "parts of one array only where no element is in both"
            )


def require_same_place(rule: Any, successor: Any) -> None:
    """Refuse a rule under which servers would have to move a dense table to other shards.

    Raises:
        InvalidArgument: One of the two has ``clip_norm`` and the other has not.
    """
    clips = [getattr(each, "clip_norm", None) is not None for each in (rule, successor)]
    if clips[0] != clips[1]:
        raise InvalidArgument(
            "whether servers clip dense gradients by the norm is settled when their tables are "
            "made: clip_norm may change, but not come or go"
        )
