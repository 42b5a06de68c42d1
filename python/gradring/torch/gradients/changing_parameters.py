"""`ChangingParameters`: how a distributed optimizer gets other parameters while it trains.

A part of `gradring.torch.optimizer.DistributedOptimizer`, on the thread that steps.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gradring.collectives.communicator import Communicator
from gradring.errors import InvalidArgument
from gradring.torch.gradients import parameters
from gradring.torch.gradients.averaging import GradientAverager
from gradring.torch.gradients.same_rules import require_same_rule
from gradring.torch.gradients.step_weight import StepWeight
from gradring.torch.gradients.turns import Turns


class ChangingParameters(torch.optim.Optimizer):
    """What of an optimizer has to be looked at anew when its parameters change."""

    _comm: Communicator
    _model: torch.nn.Module | None
    _averager: GradientAverager | None  # None in a world of one.
    _options: dict[str, Any]
    _weights: StepWeight
    _turns: Turns

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with rank 0's values for every rank; a collective call.

        Raises:
            InvalidArgument: They cannot be averaged, or a step has begun; and as in `torch.optim`.
            DeviceError: One is neither on the CPU nor on CUDA.
            Mismatch: The ranks add different ones, or by now have other settings or state; names
                the first that differs. After this error, as after the others, there is no such
                group.
        """
        self._require_between_steps()
        super().add_param_group(param_group)
        try:
            named = self._checked_parameters()
            if self._averager is not None:
                added = {id(param) for param in self.param_groups[-1]["params"]}
                new = {name: param for name, param in named.items() if id(param) in added}
                compare = partial(require_same_rule, self._comm, self, named, {})
                parameters.share(self._comm, new, averaged=new, compare_more=compare)
                self.refresh()
        except BaseException:
            self.param_groups.pop()
            raise

    def refresh(self) -> None:
        """Look at the parameters again, after freezing or unfreezing some; a collective call.

        Raises:
            InvalidArgument: A step has begun, or a parameter cannot be averaged, or compressed.
            Mismatch: A parameter is frozen on some ranks only; names it. Nothing has changed.
        """
        self._require_between_steps()
        named = self._checked_parameters()
        if self._averager is None:
            return
        before = self._averager
        parameters.require_same(before.comm, named, averaged=named)
        before.stop_listening()
        self._averager = self._listening(before.comm)
        self._averager.take_over(before)

    def _require_between_steps(self) -> None:
        if self._averager is not None and self._averager.is_open:
            raise InvalidArgument("a step has begun; call step() or zero_grad() before")

    def _checked_parameters(self) -> parameters.Named:
        named = parameters.optimizer_parameters(self.param_groups, self._model)
        parameters.require_averageable(named)
        if self._options["compress"] is not None:
            parameters.require_compressible(named)
        return named

    def _listening(self, gradients_comm: Communicator) -> GradientAverager:
        named = parameters.optimizer_parameters(self.param_groups, self._model)
        meet = self._turns.meet_before_a_round_ends
        return GradientAverager(named, gradients_comm, self._weights, meet, **self._options)
