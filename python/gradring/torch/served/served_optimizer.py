"""`ServedOptimizer`: a `torch.optim` optimizer in a mode that goes through parameter servers.

The mode is carried out by `gradring.modes` on views of the parameters' memory. Where servers step
(Sync(via="ps"), BoundedStaleness, Async) they have the optimizer's rule and its state, also what it
had before; in GEO the optimizer itself steps, on this worker's replica.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from gradring.errors import InvalidArgument
from gradring.modes.contracts import Geo, Hybrid, Mode, Sync
from gradring.modes.factory import over_servers
from gradring.modes.geo.optimizer import GeoOptimizer
from gradring.modes.rounds import RoundOptimizer
from gradring.modes.stepping.endings import for_all
from gradring.modes.stepping.waiting import StepTimedOut, lateness_of
from gradring.optim.averaging import require_weight
from gradring.torch.batch_norm.following import weigh_by
from gradring.torch.embeddings.rows import Rows, embeddings_of, make_rows
from gradring.torch.gradients import parameters
from gradring.torch.gradients.backward_watch import BackwardWatch
from gradring.torch.gradients.scaling import Asked, Scaling, Told
from gradring.torch.gradients.sparse.clipping import clip_grad_norm
from gradring.torch.gradients.step_weight import StepWeight
from gradring.torch.gradients.trained_once import Training
from gradring.torch.served.between_steps import BetweenSteps
from gradring.torch.served.served_parameters import ServedParameters
from gradring.torch.served.server_rules import rules_of, settings_of
from gradring.torch.served.servers_state import ServersState

Batch = TypeVar("Batch")
Closure = Callable[[], Any]


class ServedOptimizer(BetweenSteps, ServersState):
    """What `distributed` adds to an optimizer in a mode with servers, in front of its class.

    Attributes:
        driver: What carries the mode out: has ``staleness``, ``report`` and the like.
        rows: The model's embeddings; ``None`` if there are none.
        grad_norm: Norm of the last step's gradients of parameters, without those of rows, before
            ``clip_norm`` clipped them.
    """

    grad_norm: torch.Tensor | None = None
    _weights: StepWeight
    _clip_norm: float | None
    _is_local: bool  # The optimizer itself steps.
    _server_settings: list[Any]  # What servers were given.

    def connect(
        self,
        mode: Mode,
        model: torch.nn.Module | None,
        clip_norm: float | None,
        *,
        ps: Any,
        comm: Any,
        ranks: Any,
        **options: Any,
    ) -> None:
        """Join the other workers; called once, by `distributed`, with ``ranks`` as it was given."""
        options["comm"] = ranks
        dense_mode = mode.dense if isinstance(mode, Hybrid) else mode
        sparse_mode = mode.sparse if isinstance(mode, Hybrid) else mode
        if clip_norm is not None and isinstance(dense_mode, Sync):
            raise InvalidArgument(
                "clip_norm needs the averaged gradients, which only servers have here; use "
                "gradring.Sync()"
            )
        self._comm = comm
        self._model = model
        self._clip_norm = clip_norm
        self._weights = StepWeight()
        weigh_by(model, self._weights)
        self._scaling = Scaling(comm)
        self._is_local = isinstance(dense_mode, Geo)
        self._server_settings = [] if self._is_local else settings_of(self)
        named = parameters.optimizer_parameters(self.param_groups, model)
        self._parameters = served = ServedParameters(named, is_local=self._is_local)
        self._params = served.params
        self._listed = parameters.lists_of(self.param_groups)
        self._watch = BackwardWatch(self._params, self._weights)
        self.driver = over_servers(
            dense_mode,
            served.memory,
            [None] * len(named) if self._is_local else rules_of(self, super().step),
            ps,
            states=() if self._is_local else served.entries(self.state),
            **options,
        )
        if isinstance(mode, Hybrid):
            options["name"] += "/rows"
            self.rows = make_rows(sparse_mode, model, ps, **options)
        elif embeddings_of(model):
            self.rows = Rows(embeddings_of(model), self.driver)
        self._training = Training(self.driver)
        self._training.params = [param for param in self._params if param.requires_grad]
        for driver in self._drivers():
            driver.comm = comm
        if not self._is_local:
            self.state.clear()  # The servers' from now on; a copy here would only grow old.
        served.take_note()

    def step(self, closure: Closure | None = None, *, weight: float | None = None) -> Any:
        """Do one step in the mode's sense; see `gradring.modes.stepping.optimizer`.

        Settings that changed since the last step, as schedulers change the learning rate, are the
        servers' for this one. Hooks that `torch.optim` calls around a step run in every mode.

        Args:
            closure: As in `torch.optim`: computes the loss and its gradients anew; once, or where
                the optimizer itself steps (`gradring.Geo`) as often as that wants.
            weight: Number of examples behind this worker's gradients; `gradring.Sync` uses it.

        Returns:
            What the closure returned; ``None`` where a `torch.amp.GradScaler` has found an
            overflow: then nothing is trained.

        Raises:
            InvalidArgument: A setting has changed to what the servers' rule cannot be; or a
                GradScaler was called with a closure, or has unscaled for workers in rounds; or a
                parameter has other memory than when `distributed` was called: it is named; or
                ``param_groups`` has other parameters.
            PeerLost: A server or, with `gradring.Sync`, a worker was lost.
            TimedOut: As in the mode's own step. Where it says that the step is done, all of it is.
        """
        closures = () if closure is None else (closure,)
        with self._scaling.told_to(self) as told, self._weights.said_for_a_step(weight):
            self.driver.require_open()
            self._require_listed()
            self._follow_memory()
            self._parameters.require_in_place()
            for driver in self._drivers():
                driver.finish_step()  # Can be repeated, so before anything that cannot.
            if not isinstance(self.driver, GeoOptimizer):
                self._tell_changed_settings()
            for driver in self._drivers():
                driver.make_room()
            if told is not None and not self._is_to_be_done(told, closure):
                return None
            if isinstance(self.driver, GeoOptimizer):
                return self._step_here(self.driver, *closures)
            return self._step_at_servers(*closures)

    # Else load_state_dict would put torch's hooks around it once more. PyTorch gives it no types.
    step.hooked = True  # type: ignore[attr-defined]

    @property
    def _step_supports_amp_scaling(self) -> Asked:
        return Asked(self._before_scaler_looks)

    def _before_scaler_looks(self) -> None:
        rows = [] if self.rows is None else self.rows.gradients()
        if self._has_rounds():
            self._scaling.agree_on_overflow(self._params, rows, weight=self._weight_now())
        elif rows:
            Scaling(None).agree_on_overflow(self._params, rows)

    def _has_rounds(self) -> bool:
        """Tell whether workers must do the same steps."""
        return any(
            isinstance(driver, RoundOptimizer) and driver.workers > 1 for driver in self._drivers()
        )

    def _is_to_be_done(self, told: Told, closure: Closure | None) -> bool:
        """Unscale, or do a step without gradients where some have overflowed."""
        told.require_no_closure(closure)
        if told.is_unscaled and self._has_rounds():
            raise InvalidArgument(
                "GradScaler.unscale_() has looked at gradients of this worker only, and workers "
                "could not leave out the same steps; leave it out, or use gradring.Sync()"
            )
        if self.rows is not None:
            told.require_scaled_rows()
        if not told.is_overflow:
            rows = [] if self.rows is None else self.rows.gradients()
            told.unscale([*(param.grad for param in self._params), *rows])
            return True
        late: StepTimedOut | None = None
        for driver in self._drivers():
            # It counts, for those who count the steps of others, and for rows on a device.
            if self.rows is not None and self.rows.driver is driver:
                self.rows.forget()
                late = self.rows.step(0) or late
            else:
                late = lateness_of(functools.partial(driver.step, None, 0)) or late
        self._end_step(late)
        return False

    def _step_here(self, driver: GeoOptimizer, closure: Closure | None = None) -> Any:
        if closure is None:
            self._clip()
            late = self._train_rows(driver)  # First: unlike what follows it can be refused.
            loss = super().step()
        else:
            loss = super().step(self._clipped(closure))
            late = self._train_rows(driver)
        late = lateness_of(driver.advance) or late
        self._end_step(late)
        return loss

    def _train_rows(self, driver: GeoOptimizer) -> StepTimedOut | None:
        if self.rows is None:
            return None
        if self.rows.driver is not driver:
            return self.rows.step(self._weight_now())
        self.rows.train(driver)
        return None

    @torch.optim.Optimizer.profile_hook_step
    def _step_at_servers(self, closure: Closure | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._clip()
        # All that can be refused comes before the rows, which may have a mode of their own.
        grads, weight = self._parameters.gradients(), self._weight_now()
        self._tell_changed_settings()  # Again: a closure, or a hook, may have changed them.
        if self.rows is not None and self.rows.driver is self.driver:
            late = self.rows.step(weight, grads)
        else:
            late = None if self.rows is None else self.rows.step(weight)
            late = lateness_of(lambda: self.driver.step(grads, weight)) or late
        self._end_step(late)
        return loss

    def _clip(self) -> None:
        if self._clip_norm is not None:
            self.grad_norm = clip_grad_norm(self._params, self._clip_norm)

    def _clipped(self, closure: Closure) -> Closure:
        def clipped_closure() -> Any:
            loss = closure()
            self._clip()
            return loss

        return clipped_closure

    def _weight_now(self) -> float:
        if self.rows is not None and self.rows.has_more():
            self._weights.see_backward()
        return self._weights.weight

    def _end_step(self, late: StepTimedOut | None) -> None:
        self._weights.end_step()
        self._scaling.end_step()
        self._parameters.take_note()
        if late is not None:
            raise late

    def _tell_changed_settings(self) -> None:
        settings = settings_of(self)
        if settings != self._server_settings:
            self.driver.set_rule(rules_of(self, super().step))
            self._server_settings = settings

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, as in `torch.optim`; those of embeddings too."""
        if self.rows is not None:
            self.rows.forget()
        self._weights.drop()
        self._scaling.end_step()
        super().zero_grad(*(() if set_to_none else (False,)))  # A class may have none to set.

    def set_weight(self, weight: float) -> None:
        """Say how many examples stand behind the next step; see `DistributedOptimizer.set_weight`.

        Raises:
            InvalidArgument: It is negative or not finite.
        """
        self._weights.say(weight)

    def uneven(
        self, batches: Iterable[Batch], *, weight: Callable[[Batch], float] | None = None
    ) -> Iterator[Batch | None]:
        """Go through batches of which some workers may have more than others.

        In modes in which workers wait for each other at every step one that has run out gets
        ``None`` and weight 0 until all have, and calls `step` all the same; else it simply ends.

        Args:
            batches: This worker's.
            weight: As in `DistributedOptimizer.uneven`.

        Yields:
            Each batch, then maybe ``None``.
        """
        rounds = [driver for driver in self._drivers() if isinstance(driver, RoundOptimizer)]
        self._weight_now()  # Those of the turn in which this loop is.
        with self._weights.loop():
            for batch in [*rounds, self.driver][0].uneven(batches):
                self._weight_now()  # Those of the turn that ends.
                if rounds:
                    self._watch.listen()
                count = None
                if batch is not None:
                    count = 1 if weight is None else require_weight(weight(batch))
                self._weights.tell(count)
                yield batch

    def flush(self) -> None:
        """Bring everything to the servers and take their values; see `ModeOptimizer.flush`.

        Raises:
            InvalidArgument: As `step`, for a parameter that has other memory; nothing was done.
            TimedOut: As there, and so for other errors. Rows and dense parameters were both tried.
        """
        self._follow_memory()
        self._parameters.require_in_place()
        try:
            for_all(self._drivers(), lambda driver: driver.flush())
            self._parameters.take_note()
        finally:
            if self.rows is not None:
                self.rows.forget_rows()

    def close(self) -> None:
        """Take no further part; see `ModeOptimizer.close`. May be called again.

        A parameter that has other memory by now is left as it is.

        Raises:
            TimedOut: As `flush`, and so for other errors; call it again, or `abandon`.
        """
        if not self.driver.is_closed:
            self._follow_memory()
        for_all(self._drivers(), lambda driver: driver.close())

    def abandon(self) -> None:
        """Take no further part, without waiting for anybody; see `DistributedOptimizer.abandon`."""
        for_all(self._drivers(), lambda driver: driver.abandon())

    def _require_listed(self) -> None:
        if not parameters.are_listed(self.param_groups, self._listed):
            raise InvalidArgument(
                "param_groups has other parameters than servers have tables for: some were "
                "exchanged or added by hand; close() this optimizer, and give distributed() a new "
                "one with the parameters that there are now"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: servers have a table for each parameter from the start."""
        if hasattr(self, "driver"):
            raise InvalidArgument("parameters cannot be added once servers have the others")
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse: connections cannot be copied."""
        raise TypeError("a distributed optimizer cannot be copied or pickled; use its state_dict()")
