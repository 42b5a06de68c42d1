"""`SyncOptimizer`: synchronous data-parallel training of NumPy arrays.

It says when ranks talk and nothing else: `gradring.optim.averaging` talks, a rule of
`gradring.optim` does the arithmetic. Used from one thread.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gradring.arrays import buffers, memory_spans
from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import current, require_ranks
from gradring.collectives.same_lines import Mark, require_same_lines
from gradring.collectives.same_shapes import require_same_shapes
from gradring.collectives.uneven import dealt_out, until_all_end
from gradring.errors import InvalidArgument
from gradring.optim.averaging import SAME_ADVICE, Averager
from gradring.optim.gradients import require_numpy
from gradring.optim.rules import CoreRule, Rule, State, lines_of, require_rule
from gradring.optim.state import require_kept

Array = npt.NDArray[Any]
Batch = TypeVar("Batch")

BUCKET_BYTES = 4 << 20


class SyncOptimizer:
    """Averages gradients over all ranks, then does the same step on each.

    All ranks hold the same bits after every step. With weights that count examples the path is
    that of one process on all ranks' batches put together: exactly where the additions are exact,
    else up to their rounding.

    Example:
        >>> import numpy as np, gradring as gr
        >>> with gr.init() as comm:
        ...     w = np.zeros(2, np.float32)
        ...     optimizer = gr.SyncOptimizer([w], gr.optim.SGD(lr=0.5), comm)
        ...     optimizer.step([np.array([1, -2], np.float32)], weight=8)
        ...     w.tolist()
        [-0.5, 1.0]

    Attributes:
        params: The arrays it trains.
        rule: How a gradient changes a parameter; assign another one to follow a schedule, on every
            rank alike.
        comm: The ranks it trains with.
        is_in_step: They do equally many steps.
    """

    is_in_step = True

    def __init__(
        self,
        params: Iterable[Array],
        rule: Rule,
        comm: Communicator | None = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """Give every rank the parameters of rank 0; a collective call.

        Args:
            params: Float32 or float64 arrays, of the same shapes on every rank; written in place.
            rule: Update rule, such as ``gr.optim.SGD(lr=0.1)``.
            comm: ``None`` is the communicator that `init` made, or makes now.
            bucket_bytes: Most bytes of gradients in one operation.

        Raises:
            InvalidArgument: A parameter cannot be trained, two share memory, ``rule`` is none, or
                ``bucket_bytes`` is not positive.
            Mismatch: The parameters' number, shapes or dtypes differ between ranks, or
                ``bucket_bytes``, or the rule's class or a number of it, as float32.
        """
        require_ranks(comm)
        self.params = list(params)
        if self.params:
            require_rule(rule)
        self.rule = rule
        self.comm = current() if comm is None else comm
        self._state: list[State] = [{} for _ in self.params]
        for index, param in enumerate(self.params):
            _require_trainable(index, param)
        _require_apart(self.params)
        self._marked: tuple[Rule, Mark] | None = None
        self._averager = Averager(self.params, self.comm, bucket_bytes)
        if self.comm.world_size > 1:
            require_same_shapes(
                self.comm,
                "parameters",
                [f"parameter {index}" for index in range(len(self.params))],
                [param.shape for param in self.params],
                [param.dtype.name for param in self.params],
            )
            told = [f"bucket_bytes={int(bucket_bytes)}", *self._mark_of_rule().lines]
            require_same_lines(self.comm, told, SAME_ADVICE)
            for param in self.params:
                self.comm.broadcast(param, 0)

    def step(self, grads: Sequence[Array | None] | None, weight: float = 1.0) -> None:
        """Average the gradients over all ranks and update the parameters; a collective call.

        Args:
            grads: Mean gradient over this rank's examples for each parameter, in its shape; not
                written. ``None`` in the list: no gradient here; a parameter without gradient on all
                ranks is left alone. ``None`` for the list: this rank has run out of examples.
            weight: Number of this rank's examples.

        Raises:
            InvalidArgument: Gradients do not fit, or every rank has weight 0.
            Mismatch: Ranks have other rules by now, or rules with other numbers (of a rule of the
                user's the class is compared); nothing was changed, and ``comm`` stays usable.
            PeerLost: As `Communicator.all_reduce`, and so for its other errors.
        """
        self._update(self.average(grads, weight))

    def require_fitting(self, grads: Sequence[Array | None] | None) -> None:
        """Refuse gradients that `step` would refuse, before anything is sent.

        Args:
            grads: As for `step`.

        Raises:
            InvalidArgument: Their number, a shape or a dtype does not fit the parameters.
        """
        if grads is not None:
            self._averager.checked(grads)

    def average(
        self, grads: Sequence[Array | None] | None, weight: float = 1.0
    ) -> list[Array | None]:
        """Return the averages that `step` would use, for instance to clip them before `apply`.

        Args:
            grads: As for `step`.
            weight: As for `step`.

        Returns:
            One array for each parameter, valid until the next call; ``None`` where no rank had a
            gradient.

        Raises:
            Mismatch: As `step`, and so for its other errors.
        """
        if grads is None:
            grads, weight = [None] * len(self.params), 0.0
        return self._averager.average(grads, weight, self._mark_of_rule())

    def _mark_of_rule(self) -> Mark:
        if self._marked is None or self._marked[0] is not self.rule:
            self._marked = self.rule, Mark(lines_of(self.rule) if self.params else [])
        return self._marked[1]

    def apply(self, averages: Sequence[Array | None]) -> None:
        """Update the parameters with gradients that are the same on every rank.

        Args:
            averages: One for each parameter, as `average` returns them; ``None`` leaves it alone.

        Raises:
            InvalidArgument: Their number, a shape or a dtype does not fit the parameters; nothing
                was changed.
        """
        self._update(self._averager.checked(averages))

    def _update(self, averages: Sequence[Array | None]) -> None:
        for param, average, state in zip(self.params, averages, self._state, strict=True):
            if average is not None:
                self.rule.update(param, average, state)

    def uneven(self, batches: Iterable[Batch]) -> Iterator[Batch | None]:
        """Go through batches of which some ranks may have more than others.

        Every rank goes round equally often: one that has run out gets ``None``, and calls
        ``step(None)`` as it would otherwise call ``step(grads)``.

        Args:
            batches: This rank's.

        Yields:
            Each batch, then ``None`` until all ranks have run out.
        """
        return until_all_end(self.comm, batches)

    def hand_out(self, name: str, count: int, *, ahead: bool = False) -> Iterator[int]:  # noqa: ARG002
        """Go through the parts 0 .. count-1 of the data: part i is rank i mod n's.

        Ranks do equally many steps (`uneven`); with `gradring.Async` and `gradring.Geo` the same
        call gives faster workers more.

        Args:
            name: Of this pass over the data; for those modes.
            count: Parts.
            ahead: For those modes.
        """
        return dealt_out(name, count, self.comm.rank, self.comm.world_size)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the optimizer's state; the same on every rank.

        Returns:
            ``rule``: the rule's name; ``state``: for each parameter a dict of arrays and numbers
            under the names of `torch.optim`.
        """
        return {"rule": type(self.rule).__name__, "state": copy.deepcopy(self._state)}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a saved state; call it on every rank with the same one.

        Args:
            saved: What `state_dict` returned; numbers may have become arrays, as in a file of
                ``np.savez``.

        Raises:
            InvalidArgument: It belongs to another rule or other parameters, or is none; nothing was
                changed.
        """
        rule, states = _parts_of(saved)
        if rule != type(self.rule).__name__:
            raise InvalidArgument(f"the state is of {rule}, the rule is {type(self.rule).__name__}")
        if len(states) != len(self.params):
            raise InvalidArgument(
                f"the state is of {len(states)} parameters, there are {len(self.params)}"
            )
        loaded = [copy.deepcopy(dict(state)) for state in states]
        if isinstance(self.rule, CoreRule):
            for index, (param, state) in enumerate(zip(self.params, loaded, strict=True)):
                require_kept(self.rule, param, state, f"parameter {index}")
        self._state = loaded


def _parts_of(saved: Any) -> tuple[str, Sequence[Mapping[str, Any]]]:
    if not isinstance(saved, Mapping) or not {"rule", "state"} <= saved.keys():
        raise InvalidArgument("a saved state is a dict of 'rule' and 'state', see state_dict")
    rule, states = saved["rule"], saved["state"]
    if not isinstance(states, (list, tuple)) or not all(isinstance(s, Mapping) for s in states):
        raise InvalidArgument("'state' of a saved state is a list: a dict for each parameter")
    return rule, states


def _require_apart(params: Sequence[Array]) -> None:
    views = [
        buffers.operand(param, f"parameter {index}", writes=True)
        for index, param in enumerate(params)
    ]
    if (pair := memory_spans.first_shared(views)) is not None:
        raise InvalidArgument(
            f"parameter {pair[0]} and parameter {pair[1]} share memory: what both have would be "
            "stepped twice; give an array once"
        )


def _require_trainable(index: int, param: Any) -> None:
    require_numpy(param, f"parameter {index}")
    if param.dtype not in (np.float32, np.float64):
        raise InvalidArgument(f"parameter {index} is {param.dtype}; use float32 or float64 arrays")
    if isinstance(param, np.ma.MaskedArray):
        raise InvalidArgument(f"parameter {index} is a masked array, and masks are not trained")
    if not param.flags.writeable:
        raise InvalidArgument(f"parameter {index} is read-only, but training writes it")
