"""The collectives of a process group that work on one tensor for every rank, under torch's names.

The tensors for the ranks may differ in size. They are packed into one, unless they are slices of
one already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gradring.collectives.communicator import Communicator
from gradring.errors import InvalidArgument
from gradring.torch.c10d.calls import tensors as staging
from gradring.torch.c10d.calls.call import Call
from gradring.torch.c10d.calls.work import Work
from gradring.torch.c10d.operations.collectives import Tensors, check_fit
from gradring.torch.c10d.operations.operators import Operator
from gradring.torch.c10d.operations.short_forms import also_short


class Gathering:
    """What a process group does with lists of tensors; see torch.distributed for each."""

    comm: Communicator

    def _call(self, name: str, options: Any, result: Any) -> Call:
        raise NotImplementedError

    @also_short("AllgatherOptions", "timeout", one="input_tensors", per_rank="output_tensors")
    def allgather(
        self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> Work:
        """Give every rank everybody's tensor; their sizes may differ, but all ranks know them."""
        with self._call("all_gather", opts, output_tensors) as call:
            for outputs, source in zip(output_tensors, input_tensors, strict=True):
                self._gather_into(call, outputs, source)
        return call.work

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None
    ) -> Work:
        """Gather several tensors: ``output_lists[r][i]`` becomes rank r's ``input_list[i]``."""
        with self._call("all_gather", opts, output_lists) as call:
            self._check_parts("all_gather_coalesced", output_lists)
            for index, source in enumerate(input_list):
                self._gather_into(call, [outputs[index] for outputs in output_lists], source)
        return call.work

    @also_short("GatherOptions", "root", "timeout", one="input_tensors", per_rank="output_tensors")
    def gather(
        self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> Work:
        """Give the root everybody's tensor, all of one size."""
        with self._call("gather", opts, output_tensors) as call:
            for index, source in enumerate(input_tensors):
                x = call.input(source)
                out = None
                if self.comm.rank == opts.rootRank:
                    parts = output_tensors[index]
                    self._check_parts("gather", parts)
                    _check_dtypes("gather", source, parts)
                    _check_sizes("gather", source, parts)
                    out = call.outputs(parts, beside=x, shift=-self.comm.rank * x.numel())
                call.started(self.comm.gather(x, opts.rootRank, out=out, **call.options))
        return call.work

    def gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:  # noqa: A002
        """Give the root everybody's tensor, one after another in ``output``, of the root alone."""
        with self._call("gather", opts, [output]) as call:
            x, out = call.input(input), None
            if self.comm.rank == opts.rootRank:
                check_fit("gather", output, input, self.comm.world_size)
                out = call.output(output, beside=x, shift=-self.comm.rank * x.numel())
            call.started(self.comm.gather(x, opts.rootRank, out=out, **call.options))
        return call.work

    # torch 2.14's other name.
    gather_into_tensor = gather_single

    @also_short("ScatterOptions", "root", "timeout", one="output_tensors", per_rank="input_tensors")
    def scatter(
        self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None
    ) -> Work:
        """Give each rank its one of the root's tensors, all of one size."""
        with self._call("scatter", opts, list(output_tensors)) as call:
            for index, output in enumerate(output_tensors):
                x, mine = None, 0
                if self.comm.rank == opts.rootRank:
                    self._check_parts("scatter", input_tensors[index])
                    _check_dtypes("scatter", output, input_tensors[index])
                    _check_sizes("scatter", output, input_tensors[index])
                    x = call.inputs(input_tensors[index])
                    mine = self.comm.rank * (x.numel() // self.comm.world_size)
                out = call.output(output, beside=x, shift=mine)
                call.started(self.comm.scatter(x, opts.rootRank, out=out, **call.options))
        return call.work

    @also_short(
        "ReduceScatterOptions", "op", "timeout", one="output_tensors", per_rank="input_tensors"
    )
    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None
    ) -> Work:
        """Combine lists over all ranks; rank r keeps entry r. The entries' sizes may differ."""
        with self._call("reduce_scatter", opts, list(output_tensors)) as call:
            for output, inputs in zip(output_tensors, input_tensors, strict=True):
                self._check_parts("reduce_scatter", inputs)
                _check_dtypes("reduce_scatter", output, inputs)
                op = Operator(opts.reduceOp, output.dtype)
                x = call.inputs(inputs, reduces=True, copies=op.factor is not None)
                counts = _counts(inputs)
                mine = sum(counts[: self.comm.rank])
                out = call.output(output, reduces=True, beside=x, shift=mine)
                call.started(
                    self.comm.reduce_scatter(
                        op.prepared(x), out, op.name, counts=counts, **call.options
                    )
                )
        return call.work

    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> Work:
        """Send ``input_tensors[r]`` to rank r and get one tensor from each, of any sizes."""
        with self._call("all_to_all", opts, list(output_tensors)) as call:
            self._check_parts("all_to_all", input_tensors)
            self._check_parts("all_to_all", output_tensors)
            x = call.inputs(input_tensors)
            out = call.outputs(output_tensors, beside=x)
            call.started(
                self.comm.all_to_all(
                    x, out, send_counts=_counts(input_tensors),
                    recv_counts=_counts(output_tensors), **call.options,
                )
            )  # fmt: skip
        return call.work

    @also_short("AllToAllOptions", "timeout")
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """Send parts of ``input``, cut along its first axis, and get parts of ``output``.

        Args:
            output: Written.
            input: Dtype and row shape of ``output``.
            output_split_sizes: Rows from each rank; empty cuts evenly.
            input_split_sizes: Rows for each rank; empty cuts evenly.
            opts: ``AllToAllOptions``.
        """
        with self._call("all_to_all", opts, [output]) as call:
            sent = self._row_counts("input", input, input_split_sizes)
            received = self._row_counts("output", output, output_split_sizes)
            x = call.input(input)
            out = call.output(output, beside=x)
            call.started(
                self.comm.all_to_all(x, out, send_counts=sent, recv_counts=received, **call.options)
            )
        return call.work

    # What torch before 2.13 calls it.
    alltoall_base = all_to_all_single

    def _gather_into(self, call: Call, outputs: Tensors, source: Tensor) -> None:
        self._check_parts("all_gather", outputs)
        _check_dtypes("all_gather", source, outputs)
        counts = _counts(outputs)
        x = call.input(source)
        out = call.outputs(outputs, beside=x, shift=-sum(counts[: self.comm.rank]))
        is_even = len(set(counts)) == 1 and counts[0] == x.numel()
        call.started(
            self.comm.all_gather(x, out, counts=None if is_even else counts, **call.options)
        )

    def _check_parts(self, name: str, parts: Sequence[Any]) -> None:
        if len(parts) != self.comm.world_size:
            raise InvalidArgument(f"{name}: {len(parts)} tensors for {self.comm.world_size} ranks")

    def _row_counts(self, name: str, tensor: Tensor, rows: Sequence[int]) -> list[int]:
        ranks = self.comm.world_size
        first = tensor.shape[0] if tensor.dim() > 0 else 1
        if not rows:
            if first % ranks != 0:
                raise InvalidArgument(
                    f"all_to_all: {first} rows of {name} cannot be cut into {ranks} equal parts; "
                    "pass split sizes"
                )
            rows = [first // ranks] * ranks
        if len(rows) != ranks or sum(rows) != first:
            raise InvalidArgument(
                f"all_to_all: split sizes {list(rows)} of {name} are for {ranks} ranks and "
                f"{first} rows"
            )
        row = tensor.numel() // first if first else 0
        return [count * row * staging.units(tensor) for count in rows]


def _counts(parts: Tensors) -> list[int]:
    return [part.numel() * staging.units(part) for part in parts]


def _check_dtypes(name: str, tensor: Tensor, others: Tensors) -> None:
    for other in others:
        if other.dtype != tensor.dtype:
            raise InvalidArgument(f"{name}: dtypes {tensor.dtype} and {other.dtype} differ")


def _check_sizes(name: str, tensor: Tensor, others: Tensors) -> None:
    for rank, other in enumerate(others):
        if other.numel() != tensor.numel():
            raise InvalidArgument(
                f"{name}: entry {rank} has {other.numel()} elements, the tensor {tensor.numel()}"
            )
