"""Callbacks for `model.fit`: one start for all ranks, and metrics of all of them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from gradring.collectives import calling
from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import current, require_ranks
from gradring.dtypes import code_of
from gradring.keras.gradients import require_backend, wait_for_steps


class BroadcastInitial(keras.callbacks.Callback):  # type: ignore[misc] # Keras may be missing.
    """Gives every rank the root's weights and state of the optimizer, as `model.fit` begins.

    The seeds of layers stay each rank's own.
    """

    def __init__(self, comm: Communicator | None = None, root: int = 0) -> None:
        """Choose the ranks; nothing is sent.

        Args:
            comm: ``None`` is the communicator that `gradring.init` made, or makes now.
            root: Whose weights they are.

        Raises:
            InvalidArgument: ``comm`` is none, ``root`` no whole number, or the backend neither JAX
                nor PyTorch.
        """
        super().__init__()
        require_ranks(comm)
        require_backend()
        self._comm = current() if comm is None else comm
        self._root = calling.whole_number("BroadcastInitial: root", root)

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Share what there is; a collective call.

        Raises:
            Mismatch: The ranks have other models; as `Communicator.broadcast`, and so for its other
                errors.
        """
        wait_for_steps()
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        for variable in [*self.model.weights, *(optimizer.variables if optimizer else [])]:
            value = np.array(keras.ops.convert_to_numpy(variable), order="C")
            flat = value.reshape(-1)
            self._comm.broadcast(
                flat if code_of(flat.dtype) is not None else flat.view(np.uint8), self._root
            )
            variable.assign(value)


class AverageMetrics(keras.callbacks.Callback):  # type: ignore[misc] # Keras may be missing.
    """Averages the metrics of an epoch over all ranks, for the callbacks that come after it.

    So that those which decide by them, to stop or to lower the learning rate, decide alike.
    """

    def __init__(self, comm: Communicator | None = None) -> None:
        """Choose the ranks; nothing is sent.

        Args:
            comm: As for `BroadcastInitial`.

        Raises:
            InvalidArgument: ``comm`` is none, or the backend neither JAX nor PyTorch.
        """
        super().__init__()
        require_ranks(comm)
        require_backend()
        self._comm = current() if comm is None else comm

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Replace them; a collective call.

        Raises:
            Mismatch: The ranks have another number of metrics; as `Communicator.all_reduce`, and so
                for its other errors.
        """
        if logs:
            names = sorted(logs)
            wait_for_steps()
            values = np.array([float(logs[name]) for name in names])
            self._comm.all_reduce(values, "avg")
            logs.update(zip(names, values.tolist(), strict=True))
