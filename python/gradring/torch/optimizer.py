"""`DistributedOptimizer`: a `torch.optim` optimizer that steps with averages over all ranks."""
# What is said to other ranks is in gradring.torch.gradients.averaging.

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from gradring.collectives.communicator import Communicator
from gradring.collectives.uneven import dealt_out
from gradring.errors import Closed, InvalidArgument
from gradring.modes.stepping.lost_ranks import close_beside
from gradring.modes.stepping.waiting import StepTimedOut
from gradring.optim.averaging import no_examples, require_weight
from gradring.torch.batch_norm.following import follow
from gradring.torch.embeddings.row_state import load_with_rows, with_rows
from gradring.torch.embeddings.rows import Rows
from gradring.torch.gradients import parameters
from gradring.torch.gradients.changing_parameters import ChangingParameters
from gradring.torch.gradients.same_rules import StepSettings
from gradring.torch.gradients.scaling import Asked, Scaling, Told
from gradring.torch.gradients.sparse.clipping import clip_grad_norm
from gradring.torch.gradients.step_weight import StepWeight
from gradring.torch.gradients.turns import Turns

Batch = TypeVar("Batch")
Closure = Callable[[], Any]


class DistributedOptimizer(ChangingParameters):
    """What `distributed` adds to an optimizer, in front of the class it was made with."""

    _clip_norm: float | None
    rows: Rows | None = None  # The model's embeddings.
    grad_norm: torch.Tensor | None = None  # Of the last step, before clipping; without rows.
    is_in_step = True  # Its ranks do equally many steps.
    _scaler_may_have_looked_early = False
    _has_left = False  # Was closed or abandoned.
    _is_closed = False  # With several ranks: one that is alone steps on as torch's does.

    def connect(
        self,
        comm: Communicator,
        gradients_comm: Communicator | None,
        model: torch.nn.Module | None,
        clip_norm: float | None,
        **options: Any,
    ) -> None:
        """Take what is needed to step together, whatever there was; called by `distributed`."""
        self._comm = comm
        self._clip_norm = clip_norm
        self._model = model
        self._options = options
        self._weights = StepWeight()
        self._turns = Turns(comm, follow(model, self._weights, comm.world_size))
        self._scaling = Scaling(comm)
        self._settings = StepSettings()
        self._averager = self._training = self.grad_norm = None
        self._has_left = self._is_closed = self._scaler_may_have_looked_early = False
        if gradients_comm is not None:
            self._averager = self._listening(gradients_comm)

    def step(self, closure: Closure | None = None, *, weight: float | None = None) -> Any:
        """Wait for the averages and do one step, the same on every rank; a collective call.

        Args:
            closure: As in `torch.optim`: computes the loss and its gradients anew. The loss it
                returns is averaged over ranks too, so that all search along a line alike; on a rank
                without a batch it may return ``None``.
            weight: Number of examples behind this rank's gradients, where it was not said before
                backward and nothing was sent yet (after `no_sync`, with ``overlap=False``, or on a
                rank that had no batch).

        Returns:
            What the original ``step`` returns; ``None`` where a `torch.amp.GradScaler` has found an
            overflow, and no rank steps.

        Raises:
            InvalidArgument: The weight comes too late, or all weights are 0; or ``param_groups``
                has other parameters than it had (`refresh`); or a GradScaler was called with a
                closure, or has unscaled a rank's own gradients, or some while the model has
                embeddings.
            PeerLost: A rank died, froze or left; also out of backward.
            Mismatch: As `Communicator.all_reduce`, and so for TimedOut and Closed. Or ranks have
                done the step before by other settings (another rate); also out of backward.
            TimedOut: Also where embeddings' rows came too late; where it says that the step is
                done, this is so for everything.
        """
        if self._is_closed:  # Also where the averages of this step are out already.
            raise Closed("this optimizer is closed: it takes no further steps")
        self._require_listed()
        late: StepTimedOut | None = None
        with self._scaling.told_to(self) as told, self._said(weight):
            if self.rows is not None:
                self.rows.driver.finish_step()  # Can be repeated, so before anything that cannot.
                self.rows.driver.make_room()
            if told is not None:
                self._require_averages(told, closure)
            if told is not None and told.is_overflow:
                result: Any = None
                self._forget_rows()
                late = self._step_rows(weight=0)
            elif closure is not None:
                result = super().step(self._averaged(closure))
                late = self._step_rows()
            else:
                if told is not None and self.rows is not None:
                    told.require_no_half(param.grad for param in _params_of(self))
                    told.unscale(self.rows.gradients())
                if self._options["overlap"]:
                    self.synchronize()  # Others wait for it in backward, before they push rows.
                elif self._averager is not None:
                    self._averager.require_fitting()  # Else rows would have gone.
                late = self._step_rows()  # They travel while the rest does.
                self._finish(told)
                result = super().step()
            self._end_step(late)  # In here: a scaler has to be done with, also where it raises.
        return result

    # Else load_state_dict would put torch's hooks around it once more. PyTorch gives it no types.
    step.hooked = True  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def _said(self, weight: float | None) -> Iterator[None]:
        if weight is not None:
            self._require_weight(weight)
        with self._weights.said_for_a_step(weight):
            yield

    def _end_step(self, late: StepTimedOut | None) -> None:
        self._weights.end_step()
        self._scaling.end_step()
        self._turns.steps += 1
        if self._averager is not None:
            self._averager.begin(self._settings.mark(self))
        if late is not None:
            raise late

    def _step_rows(self, *, weight: float | None = None) -> StepTimedOut | None:
        if self.rows is None:
            return None
        self._look_at_rows()
        return self.rows.step(self._weights.weight if weight is None else weight)

    def _look_at_rows(self) -> None:
        if self.rows is not None and self.rows.has_more():
            self._weights.see_backward()

    def _forget_rows(self) -> None:
        if self.rows is not None:
            self.rows.forget()

    def _finish(self, told: Told | None = None) -> None:
        self.synchronize()
        params = _params_of(self)
        if told is not None:
            told.unscale(param.grad for param in params)
        if self._clip_norm is not None:
            self.grad_norm = clip_grad_norm(params, self._clip_norm)

    def _averaged(self, closure: Closure) -> Closure:
        averager = self._averager

        def closure_on_all_ranks() -> Any:
            if averager is not None and averager.is_done:
                averager.begin()
            loss = closure()
            self._finish()
            return loss if averager is None else averager.average_loss(loss)

        return closure_on_all_ranks

    def synchronize(self) -> None:
        """Wait until every ``.grad`` is the average over all ranks, to look at it before `step`.

        Backward does it by itself, except with ``overlap=False``; a rank that has run no backward
        in this step calls it before it looks, and before any collective of its own.

        Raises:
            Mismatch: Ranks have done the step before by other settings; as `step`, and so for its
                other errors.
        """
        self._look_at_rows()
        if self._averager is not None:
            self._averager.finish()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, as in `torch.optim`; a step that was begun is dropped.

        All ranks must drop it, or none.

        Raises:
            Mismatch: As `synchronize`, and so for its other errors, where gradients were on their
                way. They are forgotten all the same.
        """
        try:
            if self._averager is not None:
                self._averager.begin()
        finally:
            self._scaling.end_step()
            self._forget_rows()
            super().zero_grad(*(() if set_to_none else (False,)))  # A class may have none to set.

    @property
    def _step_supports_amp_scaling(self) -> Asked:
        return Asked(self._before_scaler_looks)

    def _before_scaler_looks(self) -> None:
        had_averages = self._averager is None or self._averager.is_done
        self.synchronize()
        self._scaler_may_have_looked_early = not had_averages
        if self.rows is not None:
            round_number = 0 if self._averager is None else self._averager.ended
            self._scaling.agree_on_overflow(
                _params_of(self), self.rows.gradients(), round_number=round_number
            )

    def _require_averages(self, told: Told, closure: Closure | None) -> None:
        told.require_no_closure(closure)
        if self.rows is not None:
            told.require_scaled_rows()
        if told.is_unscaled and self._scaler_may_have_looked_early:
            raise InvalidArgument(
                "GradScaler.unscale_() came before the averages, and has looked at gradients of "
                "this rank only; call optimizer.synchronize() before it, on every rank"
            )

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank had to send for gradients so far, over links or shared memory."""
        return 0 if self._averager is None else self._averager.sent_bytes

    @property
    def uncompressed_bytes(self) -> int:
        """What `sent_bytes` would be without compression."""
        return 0 if self._averager is None else self._averager.uncompressed_bytes

    def set_weight(self, weight: float) -> None:
        """Say how many examples stand behind this rank's next gradients; before backward.

        It counts for the whole step, whatever `uneven` counts; without both a rank counts as 1.

        Args:
            weight: At least 0; a rank of weight 0 adds nothing to the averages.

        Raises:
            InvalidArgument: It is negative or not finite, or it comes too late.
        """
        self._require_weight(weight)
        self._weights.say(weight)

    def _require_weight(self, weight: float) -> None:
        weight = require_weight(weight)
        if self._averager is not None:
            self._averager.require_in_time(weight)
        elif weight == 0:
            raise no_examples()

    def uneven(
        self, batches: Iterable[Batch], *, weight: Callable[[Batch], float] | None = None
    ) -> Iterator[Batch | None]:
        """Go through batches of which some ranks may have more than others.

        Every rank goes round equally often: one that has run out gets ``None`` and weight 0. It
        leaves out forward and backward, and does the rest (clipping, `step`, schedulers) as usual.

        A batch's weight is that of the backward passes after it, up to the next batch; those of
        several batches for one step are added up. The next one may be fetched between backward and
        `step`.

        Args:
            batches: This rank's; a `torch.utils.data.DataLoader`, for instance.
            weight: Returns the number of examples in a batch; without it each counts as 1.

        Yields:
            Each batch, then ``None`` until all ranks have run out.

        Raises:
            Mismatch: As `synchronize`, and so for its other errors: where a turn has brought no
                averages yet, they are waited for before the next.
            Closed: Also where the optimizer was given to `distributed` again meanwhile.
        """
        self._look_at_rows()  # Those of the turn in which this loop is.
        turns = self._turns
        with self._weights.loop():
            for batch in turns.until_all_end(batches, self.synchronize):
                count = None
                if batch is not None:
                    count = 1 if weight is None else require_weight(weight(batch))
                if self._averager is None:
                    self.set_weight(0 if count is None else count)
                else:
                    self._look_at_rows()
                    self._weights.tell(count)
                yield batch
                if self._turns is not turns:
                    raise Closed(
                        "the optimizer goes on in other ranks than those of this loop over "
                        "uneven(); begin another one, as they do"
                    )

    def hand_out(self, name: str, count: int, *, ahead: bool = False) -> Iterator[int]:  # noqa: ARG002
        """Go through the parts 0 .. count-1 of the data: part i is rank i mod n's.

        Ranks do equally many steps (`uneven`); with `gradring.Async` and `gradring.Geo` the same
        call gives faster workers more.
        """
        return dealt_out(name, count, self._comm.rank, self._comm.world_size)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add up gradients in here: for all but the last backward of a step."""
        if self._averager is None:
            yield
            return
        before, self._averager.is_accumulating = self._averager.is_accumulating, True
        try:
            yield
        finally:
            self._averager.is_accumulating = before  # Another one after `refresh`.

    def share_buffers(self) -> None:
        """Give every rank rank 0's buffers (running means, say), before an evaluation or a save.

        A collective call. Needs the ``model`` that was given to `distributed`.
        """
        parameters.share_buffers(self._comm, self._model)

    def flush(self) -> None:
        """Bring what was pushed of embeddings to the servers; see `ModeOptimizer.flush`."""
        if self.rows is not None:
            self.rows.driver.flush()
            self.rows.forget_rows()

    def close(self) -> None:
        """Take no further part; see `ModeOptimizer.close`. May be called again.

        Backward no longer averages, and with several ranks `step` raises `Closed`; also where
        embeddings' rows could not be closed.

        Raises:
            TimedOut: As `ModeOptimizer.close`, of embeddings' rows, and so for its other errors;
                call it again, or `abandon`.
        """
        try:
            if self.rows is not None:
                comm = self._comm if self._averager is None else self._averager.comm
                close_beside(self.rows.driver, comm)
        finally:
            self._stop_averaging()

    def abandon(self) -> None:
        """Take no further part, as after `close`, but without waiting for anybody.

        For an optimizer that cannot go on, as an error says: gradients and rows on their way may
        arrive or not. Its name is free for another one.
        """
        if self.rows is not None:
            self.rows.driver.abandon()
        self._stop_averaging()

    @property
    def is_ended(self) -> bool:
        """Whether it can no longer step with its ranks: `distributed` takes it on to others."""
        comm = self._comm if self._averager is None else self._averager.comm
        return self._has_left or self._comm.is_closed or comm.is_closed

    def _stop_averaging(self) -> None:
        self._has_left = True
        if self._averager is not None:
            self._is_closed = True
            self._averager.stop_listening()
            self._averager.comm.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and of rows what this worker trains (`gradring.Geo`)."""
        return with_rows(super().state_dict(), self.rows)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            InvalidArgument: That of rows is missing, or of other tables or rules. As after any
                other error, also of torch's own, nothing was changed.
            TimedOut: Servers did not bring rows that are new here.
        """
        load_with_rows(self, super().load_state_dict, state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse: communicators and listeners cannot be copied."""
        raise TypeError("a distributed optimizer cannot be copied or pickled; use its state_dict()")


def _params_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    # Not a method: a class behind ours may have any name for something else.
    return [param for group in optimizer.param_groups for param in group["params"]]
