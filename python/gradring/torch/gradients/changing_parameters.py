"""`ChangingParameters`: how a distributed optimizer gets other parameters while it trains.

A part of `gradring.torch.optimizer.DistributedOptimizer`, on the thread that steps.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch

from gradring.collectives.communicator import Communicator
from gradring.errors import InvalidArgument
from gradring.torch.gradients import parameters
from gradring.torch.gradients.averaging import GradientAverager
from gradring.torch.gradients.same_rules import require_same_rule
from gradring.torch.gradients.sparse.exchange import names_of, sparse_ones
from gradring.torch.gradients.step_weight import StepWeight
from gradring.torch.gradients.trained_once import Training, require_untrained
from gradring.torch.gradients.turns import Turns


class ChangingParameters(torch.optim.Optimizer):
    """What of an optimizer has to be looked at anew when its parameters change."""

    _comm: Communicator
    _model: torch.nn.Module | None
    _averager: GradientAverager | None  # None in a world of one.
    _options: dict[str, Any]
    _training: Training | None = None
    _listed: list[list[torch.Tensor]]  # Of each group: what is averaged, or was frozen.
    _weights: StepWeight
    _turns: Turns

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with rank 0's values for every rank; a collective call.

        Raises:
            InvalidArgument: They cannot be averaged, another optimizer trains one, or a step has
                begun; and as in `torch.optim`.
            DeviceError: One is neither on the CPU nor on CUDA.
            Mismatch: The ranks add different ones, or by now have other settings or state; names
                the first that differs. After this error, as after the others, there is no such
                group.
        """
        self._require_between_steps()
        super().add_param_group(param_group)
        try:
            named = self._checked_parameters()
            self._look_again(named)
        except BaseException:
            self.param_groups.pop()
            raise

    def refresh(self) -> None:
        """Look at the parameters again, after freezing or unfreezing some; a collective call.

        Of parameters that were put into ``param_groups`` by hand every rank gets rank 0's values.

        Raises:
            InvalidArgument: A step has begun; or a parameter cannot be averaged, or compressed, or
                another optimizer trains it.
            Mismatch: A parameter is frozen on some ranks only, or new; names it. Or new ones would
                be stepped differently. Nothing has changed.
        """
        self._require_between_steps()
        self._look_again(self._checked_parameters())

    def _look_again(self, named: parameters.Named) -> None:
        before = self._averager
        if before is None:
            return
        known = {id(param) for params in self._listed for param in params}
        new = {name: param for name, param in named.items() if id(param) not in known}
        parameters.require_shareable(new)
        sparse = names_of(sparse_ones(self, self._model), named)
        parameters.require_same(before.comm, named, averaged=named, sparse=sparse)
        compare = partial(require_same_rule, before.comm, self, named, {}) if new else None
        parameters.share(before.comm, new, averaged=new, compare_more=compare)
        before.stop_listening()
        self._averager = self._listening(before.comm, before.apart)
        self._averager.take_over(before)

    def _require_listed(self) -> None:
        if self._averager is not None and not parameters.are_listed(
            self.param_groups, self._listed
        ):
            raise InvalidArgument(
                "param_groups has other parameters than the optimizer averages: some were "
                "exchanged or added by hand; call optimizer.refresh() on every rank after that, or "
                "add them with add_param_group()"
            )

    def _require_between_steps(self) -> None:
        if self._averager is not None and self._averager.is_open:
            raise InvalidArgument("a step has begun; call step() or zero_grad() before")

    def _checked_parameters(self) -> parameters.Named:
        named = parameters.optimizer_parameters(self.param_groups, self._model)
        parameters.require_averageable(named)
        require_untrained(named, besides=self._training)
        if self._options["compress"] is not None:
            parameters.require_compressible(named)
        return named

    def _listening(
        self, gradients_comm: Communicator, apart: Collection[torch.Tensor] = ()
    ) -> GradientAverager:
        named = parameters.optimizer_parameters(self.param_groups, self._model)
        # Closed with what carries the gradients; refresh() goes on with that.
        self._training = self._training or Training(gradients_comm)
        self._training.params = [param for param in named.values() if param.requires_grad]
        self._listed = parameters.lists_of(self.param_groups)
        meet = self._turns.meet_before_a_round_ends
        return GradientAverager(
            named, gradients_comm, self._weights, meet,
            apart={*apart, *sparse_ones(self, self._model)}, **self._options,
        )  # fmt: skip
