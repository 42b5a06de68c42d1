"""`distributed`: makes an optimizer of Keras step with gradients averaged over all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import keras

from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import current, require_ranks
from gradring.errors import InvalidArgument
from gradring.timeouts import milliseconds

BACKENDS = ("jax", "torch")

Average = Callable[[Sequence[Any]], list[Any]]


def distributed(
    optimizer: Any, comm: Communicator | None = None, *, timeout: float | None = None
) -> Any:
    """Make an optimizer average gradients over all ranks before each step, in `model.fit` too.

    Nothing is sent. Every call of ``apply`` is then a collective call. A model that is saved with
    it has the optimizer as it was: after loading, call this again.

    Args:
        optimizer: Of Keras; changed in place. For float16 policies that is the
            `keras.optimizers.LossScaleOptimizer` around it, so that all ranks find the same
            overflows.
        comm: ``None`` is the communicator that `gradring.init` made, or makes now.
        timeout: As for `Communicator.all_reduce`.

    Returns:
        ``optimizer``.

    Raises:
        InvalidArgument: It is no optimizer, is distributed already, or the backend of Keras is
            neither JAX nor PyTorch.
    """
    require_ranks(comm)
    milliseconds(timeout)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgument(f"{type(optimizer).__name__} is not a keras.optimizers.Optimizer")
    if "apply" in vars(optimizer):
        raise InvalidArgument("this optimizer is distributed already")
    average = _average_of(current() if comm is None else comm, timeout)
    plain, stateless = optimizer.apply, optimizer.stateless_apply

    @functools.wraps(plain)
    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        return plain(average(list(grads)), trainable_variables)

    @functools.wraps(stateless)
    def stateless_apply(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        return stateless(optimizer_variables, average(list(grads)), trainable_variables)

    # Of this object, not of a class in front of its own, which files of models would name.
    optimizer.apply = apply
    if type(optimizer).stateless_apply is not keras.optimizers.Optimizer.stateless_apply:
        # One of its own does not come by apply: that of LossScaleOptimizer, which JAX takes.
        optimizer.stateless_apply = stateless_apply
    return optimizer


def require_backend() -> str:
    """Return the name of Keras' backend.

    Raises:
        InvalidArgument: It is none of `BACKENDS`.
    """
    name = str(keras.backend.backend())
    if name not in BACKENDS:
        raise InvalidArgument(
            f"the backend of Keras is {name}; gradring.keras works on JAX and PyTorch: set "
            "KERAS_BACKEND=jax or KERAS_BACKEND=torch"
        )
    return name


def wait_for_steps() -> None:
    """Wait until the collectives of steps that JAX may still run are done.

    Raises:
        PeerLost: As `gradring.jax.own_errors`, and so for every other error.
    """
    if require_backend() == "jax":
        from gradring.jax.failures import wait_for_programs

        wait_for_programs()


def _average_of(comm: Communicator, timeout: float | None) -> Average:
    if require_backend() == "jax":
        from gradring.jax import all_reduce

        return lambda grads: list(all_reduce(grads, comm, "avg", timeout=timeout))

    import torch

    def average(grads: Sequence[Any]) -> list[Any]:
        # Copies: they may be the variables' own, which a script still looks at.
        copies = [None if grad is None else grad.detach().clone() for grad in grads]
        there = [copy for copy in copies if copy is not None]
        comm.all_reduce_many(there, "avg", timeout=timeout)
        return copies

    # PyTorch, asked for jit_compile=True, would else look into what NumPy and the core do.
    return cast(Average, torch.compiler.disable(average))  # type: ignore[no-untyped-call]
