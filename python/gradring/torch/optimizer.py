"""`distributed`: makes a `torch.optim` optimizer step with gradients averaged over all ranks.

The optimizer keeps its identity and its class gains one in front, so schedulers, state_dict and
everything else go on to work. What is said to other ranks is in `gradring.torch.averaging`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

import torch

from gradring import config
from gradring.communicator import Communicator
from gradring.compression import Compression, code_of
from gradring.errors import InvalidArgument
from gradring.joining import current
from gradring.modes import Async, BoundedStaleness, Geo, Hybrid, Mode, Sync
from gradring.optim.averaging import no_examples, require_weight
from gradring.torch import parameters
from gradring.torch.averaging import GradientAverager
from gradring.torch.served import Rows, ServedOptimizer, make_rows
from gradring.uneven import dealt_out, until_all_end

Batch = TypeVar("Batch")
Closure = Callable[[], Any]

# Small enough that most of a model's gradients travel while backward computes the others.
BUCKET_BYTES = 4 << 20


class DistributedOptimizer(torch.optim.Optimizer):
    """What `distributed` adds to an optimizer, in front of the class it was made with."""

    _comm: Communicator
    _model: torch.nn.Module | None
    _averager: GradientAverager | None  # None in a world of one.
    _options: dict[str, Any]
    _clip_norm: float | None
    rows: Rows | None = None  # The model's embeddings.
    _weight: float = 1.0
    grad_norm: torch.Tensor | None = None  # Of the last step, before clipping.
    is_in_step = True  # Its ranks do equally many steps.

    def connect(
        self,
        comm: Communicator,
        gradients_comm: Communicator | None,
        model: torch.nn.Module | None,
        clip_norm: float | None,
        **options: Any,
    ) -> None:
        """Take what is needed to step together; called once, by `distributed`."""
        self._comm = comm
        self._clip_norm = clip_norm
        self._model = model
        self._options = options
        self._averager = None
        if gradients_comm is not None:
            self._averager = self._listening(gradients_comm)

    def step(self, closure: Closure | None = None, *, weight: float | None = None) -> Any:
        """Wait for the averages and do one step, the same on every rank; a collective call.

        Args:
            closure: As in `torch.optim`: computes the loss and its gradients anew. The loss it
                returns is averaged over ranks too, so that all search along a line alike.
            weight: Number of examples behind this rank's gradients, where it was not said before
                backward and nothing was sent yet (after `no_sync`, with ``overlap=False``, or on a
                rank that had no batch).

        Returns:
            What the original ``step`` returns.

        Raises:
            InvalidArgument: The weight comes too late, or all weights are 0.
            PeerLost: A rank died, froze or left; also out of backward.
            Mismatch: As `Communicator.all_reduce`, and so for TimedOut and Closed.
        """
        if weight is not None:
            self.set_weight(weight)
        averager = self._averager
        if closure is not None:
            result: Any = super().step(self._averaged(closure))
            self._step_rows()
        else:
            self._step_rows()  # They travel while the rest does.
            self._finish()
            result = super().step()
        if averager is not None:
            averager.begin()
            averager.set_weight(1)
        self._weight = 1.0
        return result

    def _step_rows(self) -> None:
        if self.rows is not None:
            self.rows.step(self._weight)

    def _finish(self) -> None:
        if self._averager is not None:
            self._averager.finish()
        if self._clip_norm is not None:
            params = [param for group in self.param_groups for param in group["params"]]
            self.grad_norm = torch.nn.utils.clip_grad_norm_(params, self._clip_norm)

    def _averaged(self, closure: Closure) -> Closure:
        averager = self._averager

        def closure_on_all_ranks() -> Any:
            if averager is not None and averager.is_done:
                averager.begin()
            loss = closure()
            self._finish()
            if loss is None or averager is None:
                return loss
            value = loss.item() if torch.is_tensor(loss) else float(loss)
            mean = averager.average_number(value)
            return torch.as_tensor(mean, dtype=loss.dtype) if torch.is_tensor(loss) else mean

        return closure_on_all_ranks

    def synchronize(self) -> None:
        """Wait until every ``.grad`` is the average over all ranks, to look at it before `step`.

        Backward does it by itself, except with ``overlap=False``; a rank that has run no backward
        in this step calls it before it looks, and before any collective of its own.
        """
        if self._averager is not None:
            self._averager.finish()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, as in `torch.optim`; a step that was begun is dropped.

        All ranks must drop it, or none.
        """
        if self._averager is not None:
            self._averager.begin()
        if self.rows is not None:
            self.rows.forget()
        super().zero_grad(set_to_none)

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

        It counts until the end of the step; without it each rank counts as 1.

        Raises:
            InvalidArgument: It is negative or not finite, or it comes too late.
        """
        if self.rows is not None:
            self._weight = require_weight(weight)
        if self._averager is not None:
            self._averager.set_weight(weight)
        elif require_weight(weight) == 0:
            raise no_examples()

    def uneven(
        self, batches: Iterable[Batch], *, weight: Callable[[Batch], float] | None = None
    ) -> Iterator[Batch | None]:
        """Go through batches of which some ranks may have more than others.

        Every rank goes round equally often: one that has run out gets ``None`` and weight 0. It
        leaves out forward and backward, and does the rest (clipping, `step`, schedulers) as usual.

        Args:
            batches: This rank's; a `torch.utils.data.DataLoader`, for instance.
            weight: Returns the number of examples in a batch; ``None`` counts each batch as 1.

        Yields:
            Each batch, then ``None`` until all ranks have run out.
        """
        for batch in until_all_end(self._comm, batches):
            if batch is None:
                self.set_weight(0)
            else:
                self.set_weight(1 if weight is None else weight(batch))
            yield batch

    def hand_out(self, name: str, count: int) -> Iterator[int]:
        """Go through the parts 0 .. count-1 of the data: part i is rank i mod n's.

        Ranks do equally many steps (`uneven`); with `gradring.Async` and `gradring.Geo` the same
        call gives faster workers more.
        """
        return dealt_out(name, count, self._comm.rank, self._comm.world_size)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add up gradients in here: for all but the last backward of a step."""
        averager = self._averager
        if averager is None:
            yield
            return
        before, averager.is_accumulating = averager.is_accumulating, True
        try:
            yield
        finally:
            averager.is_accumulating = before

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with rank 0's values for every rank; a collective call."""
        super().add_param_group(param_group)
        named = parameters.optimizer_parameters(self.param_groups, self._model)
        added = {id(param) for param in self.param_groups[-1]["params"]}
        parameters.require_averageable(named)
        if self._averager is not None:
            new = {name: param for name, param in named.items() if id(param) in added}
            parameters.share(self._comm, new)
            self.refresh()

    def refresh(self) -> None:
        """Look at the parameters again, after freezing or unfreezing some; on every rank alike.

        Raises:
            InvalidArgument: A step has begun.
        """
        if self._averager is None:
            return
        if self._averager.is_open:
            raise InvalidArgument("a step has begun; call step() or zero_grad() before")
        before = self._averager
        before.stop_listening()
        self._averager = self._listening(before.comm)
        self._averager.take_residuals(before)

    def share_buffers(self) -> None:
        """Give every rank rank 0's buffers (running means, say), before an evaluation or a save.

        A collective call. Needs the ``model`` that was given to `distributed`.
        """
        if self._model is None:
            raise InvalidArgument("share_buffers: give the model to distributed(..., model=model)")
        if self._averager is not None:
            parameters.share(self._comm, dict(self._model.named_buffers()))

    def flush(self) -> None:
        """Bring what was pushed of embeddings to the servers; see `ModeOptimizer.flush`."""
        if self.rows is not None:
            self.rows.driver.flush()
            self.rows.forget_rows()

    def close(self) -> None:
        """Take no further part; see `ModeOptimizer.close`. May be called again.

        Backward no longer averages, and with several ranks `step` raises `Closed`.
        """
        if self.rows is not None:
            self.rows.driver.close()
        if self._averager is not None:
            self._averager.stop_listening()
            self._averager.comm.close()

    def _listening(self, gradients_comm: Communicator) -> GradientAverager:
        named = parameters.optimizer_parameters(self.param_groups, self._model)
        return GradientAverager(named, gradients_comm, **self._options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse: communicators and listeners cannot be copied."""
        raise TypeError("a distributed optimizer cannot be copied or pickled; use its state_dict()")


def distributed(  # noqa: PLR0913 - all but the first two are options with a default
    optimizer: torch.optim.Optimizer,
    mode: Mode | None = None,
    *,
    model: torch.nn.Module | None = None,
    comm: Communicator | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    overlap: bool = True,
    compress: Compression | None = None,
    clip_norm: float | None = None,
    ps: Any = None,
    name: str = "model",
    timeout: float | None = None,
) -> Any:
    """Make an optimizer train on all ranks; a collective call.

    Every rank gets rank 0's initial values. What follows depends on the mode (docs/modes.md). With
    `gradring.Sync()` gradients are averaged over the ranks, in buckets that travel while backward
    still runs, and every rank does the same step: all hold the same parameters, bit for bit. When
    ``backward()`` returns, every ``.grad`` is the average (and a view of a bucket: clone it to keep
    it). State is local; load a saved one on every rank.

    The rows of a model's `gradring.torch.Embedding` layers follow the mode too; with
    `gradring.Sync()` in rounds, as ``gradring.Sync(via="ps")`` does.

    Args:
        optimizer: Any of `torch.optim` or one like it, with parameters on the CPU or on CUDA; on
            the CPU where the mode has servers between them. It is changed in place. Make
            learning-rate schedulers after this.
        mode: `gradring.Sync`, the default, `gradring.BoundedStaleness`, `gradring.Async`,
            `gradring.Geo` or `gradring.Hybrid`.
        model: Its other parameters and its buffers are shared too, errors use its names, and its
            embeddings are trained.
        comm: ``None`` is the communicator that `init` made, or makes now.
        bucket_bytes: Most bytes of gradients in one operation.
        overlap: Start buckets during backward. Without it weights may be given to ``step``.
        compress: ``"bf16" "fp16" "int8"`` or ``gradring.TopK(ratio)``: gradients travel in fewer
            bytes. What that leaves out is kept, and travels with the next step's.
        clip_norm: Largest norm of all averaged gradients together; in `step` they are scaled down
            to it, after a `torch.amp.GradScaler` has unscaled them. ``grad_norm`` is what it was.
        ps: What `gradring.ps.connect` returned; ``None`` connects where the mode needs servers.
        name: Of the model: the first part of its tables' names on the servers.
        timeout: Seconds that a step may wait for other workers, where servers are between them;
            ``None``: `GRADRING_TIMEOUT`, or 30.

    Returns:
        ``optimizer``, now also a `DistributedOptimizer`, or in a mode in which dense parameters go
        through servers a `gradring.torch.served.ServedOptimizer`.

    Raises:
        InvalidArgument: It is distributed already, or has a scheduler; or an option makes no sense.
        DeviceError: A parameter is neither on the CPU nor on CUDA, or on CUDA where the mode has
            servers between them.
        Mismatch: The ranks have different models; names the first parameter that differs.
    """
    _require_ready(optimizer, mode, bucket_bytes)
    _require_usable(compress, clip_norm)
    if compress is not None and mode is not None and not _is_all_reduce(mode):
        raise InvalidArgument("compress is for gradients that ranks add up: gradring.Sync()")
    timeout = config.timeout_in_force(os.environ, timeout)
    comm = current() if comm is None else comm
    named = parameters.optimizer_parameters(optimizer.param_groups, model)
    parameters.require_averageable(named)
    if compress is not None:
        parameters.require_compressible(named)
    shared = {id(tensor): (name, tensor) for name, tensor in named.items()}
    shared |= {id(tensor): (name, tensor) for name, tensor in parameters.model_tensors(model)}

    if comm.world_size > 1:
        parameters.share(comm, dict(shared.values()))
    served = {"name": name, "workers": comm.world_size, "timeout": timeout}
    if mode is not None and not _is_all_reduce(mode):
        return _through_servers(optimizer, mode, model, clip_norm, ps=ps, comm=comm, **served)
    rows_mode = mode.sparse if isinstance(mode, Hybrid) else Sync(via="ps")
    # First what servers may refuse: nothing of the optimizer has changed yet.
    rows = make_rows(rows_mode, model, ps, **(served | {"name": f"{name}/rows"}))
    with contextlib.ExitStack() as undo:
        if rows is not None:
            undo.callback(rows.driver.abandon)
        gradients_comm = comm.split(0) if comm.world_size > 1 else None
        if gradients_comm is not None:
            undo.callback(gradients_comm.close)
        result = cast(DistributedOptimizer, _with_front(optimizer, DistributedOptimizer, undo))
        result.connect(
            comm, gradients_comm, model, clip_norm,
            bucket_bytes=bucket_bytes, overlap=overlap, compress=compress,
        )  # fmt: skip
        result.rows = rows
        undo.pop_all()
    return result


def _is_all_reduce(mode: Mode) -> bool:
    return mode == Sync() or (isinstance(mode, Hybrid) and mode.dense == Sync())


def _with_front(
    optimizer: torch.optim.Optimizer, front: type[Any], undo: contextlib.ExitStack
) -> Any:
    kind = type(optimizer)
    undo.callback(setattr, optimizer, "__class__", kind)
    optimizer.__class__ = type(f"Distributed{kind.__name__}", (front, kind), {})
    return optimizer


def _through_servers(
    optimizer: torch.optim.Optimizer,
    mode: Mode,
    model: torch.nn.Module | None,
    clip_norm: float | None,
    **served: Any,
) -> ServedOptimizer:
    with contextlib.ExitStack() as undo:
        result = cast(ServedOptimizer, _with_front(optimizer, ServedOptimizer, undo))
        result.connect(mode, model, clip_norm, **served)
        undo.pop_all()
    return result


def _require_ready(optimizer: Any, mode: Any, bucket_bytes: int) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgument(f"{type(optimizer).__name__} is not a torch.optim.Optimizer")
    if isinstance(optimizer, (DistributedOptimizer, ServedOptimizer)):
        raise InvalidArgument("this optimizer is distributed already")
    if "step" in vars(optimizer):
        raise InvalidArgument(
            "this optimizer has a learning-rate scheduler; make that after distributed()"
        )
    if mode is not None and not isinstance(mode, (Sync, BoundedStaleness, Async, Geo, Hybrid)):
        raise InvalidArgument(
            f"mode {mode!r} is none of gradring's Sync, BoundedStaleness, Async, Geo and Hybrid"
        )
    if bucket_bytes <= 0:
        raise InvalidArgument(f"bucket_bytes must be positive, got {bucket_bytes}")


def _require_usable(compress: Compression | None, clip_norm: float | None) -> None:
    if compress is not None:
        code_of(compress)
    if clip_norm is not None and not clip_norm > 0:
        raise InvalidArgument(f"clip_norm must be positive, got {clip_norm}")
