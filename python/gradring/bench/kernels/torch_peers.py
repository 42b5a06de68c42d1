"""What PyTorch does in the place of each kernel, on tensors of the same sizes.

The strongest forms it has: multi-tensor (``_foreach_*``), fused optimizers, and torch.compile of
the same expression. Nothing here is imported where torch is missing or sees no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradring.bench.kernels.measure import Bench, Case, Launch
from gradring.bench.kernels.options import Options
from gradring.bench.kernels.streaming import tensor_counts

Calls = dict[str, Callable[[], object]]


def add_to(cases: list[Case], bench: Bench, options: Options) -> str | None:
    """Put torch's ways beside the cases; returns why there are none, or ``None``."""
    try:
        import torch
    except ModuleNotFoundError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    device = torch.device("cuda", bench.device)
    external: Any = torch.cuda.ExternalStream
    stream = external(bench.stream.ptr, device=device)
    vectors = VectorPeers(torch, device, options)
    rows = RowPeers(torch, device, options)
    for case in cases:
        for name, make in {**vectors.makers(), **rows.makers()}.items():
            if case.name.startswith(name):
                for label, call in make().items():
                    case.peers[label] = _on(torch, stream, call)
    return None


def _on(torch: Any, stream: Any, call: Callable[[], object]) -> Launch:
    def launch(_: int) -> None:
        with torch.cuda.stream(stream):
            call()

    return launch


class VectorPeers:
    """Peers of the streaming kernels and the codecs."""

    def __init__(self, torch: Any, device: Any, options: Options) -> None:
        """Allocate nothing yet."""
        self._torch = torch
        self._device = device
        self._n = options.elements
        self._k = options.sources
        self._counts = tensor_counts(options.tensors, self._n)

    def makers(self) -> dict[str, Callable[[], Calls]]:
        """Return by beginning of a case's name what makes its peers."""
        return {
            "pack: ": self.pack,
            "unpack: ": self.unpack,
            "reduce: ": self.reduce,
            "check and norm": self.norm,
            "unscale": self.unscale,
            f"average {self._k} bf16 and SGD": lambda: self.step("SGD", momentum=0.9),
            f"average {self._k} bf16 and Adam": lambda: self.step("Adam"),
            "int8 quantise": self.quantise,
            "top 1 % with": self.top,
        }

    def _vector(self, dtype: Any = None, count: int | None = None) -> Any:
        torch = self._torch
        size = (self._n if count is None else count,)
        return torch.full(size, 0.01, dtype=dtype or torch.float32, device=self._device)

    def _bucket(self) -> tuple[Any, Any, Any]:
        whole = self._vector(self._torch.bfloat16)
        tensors = [self._vector(count=count) for count in self._counts]
        return tensors, whole, list(self._torch.split(whole, self._counts))

    def pack(self) -> Calls:
        """Multi-tensor copies, and concatenation."""
        torch = self._torch
        tensors, whole, parts = self._bucket()

        def foreach() -> None:
            torch._foreach_copy_(parts, tensors)
            whole.mul_(0.125)

        def cat() -> None:
            whole.copy_(torch.cat(tensors).mul_(0.125))

        return {"torch._foreach_copy_, mul_": foreach, "torch.cat, mul_, copy_": cat}

    def unpack(self) -> Calls:
        """Multi-tensor copies."""
        torch = self._torch
        tensors, _, parts = self._bucket()

        def foreach() -> None:
            torch._foreach_copy_(tensors, parts)
            torch._foreach_mul_(tensors, 0.125)

        return {"torch._foreach_copy_, _foreach_mul_": foreach}

    def reduce(self) -> Calls:
        """A sum over a stack, and the compiled expression with its check."""
        torch, k = self._torch, self._k
        sources = [self._vector(torch.bfloat16) for _ in range(k)]
        out = self._vector()

        def plain() -> None:
            torch.sum(torch.stack(sources), 0, dtype=torch.float32, out=out)
            out.div_(k)

        def total(*parts: Any) -> Any:
            result = parts[0].float()
            for part in parts[1:]:
                result = result + part
            result = result / k
            return result, torch.isfinite(result).all()

        compiled = torch.compile(total)
        return {"torch.stack, sum": plain, "torch.compile": lambda: compiled(*sources)}

    def norm(self) -> Calls:
        """The norm without the check."""
        x, norm = [self._vector()], self._torch._foreach_norm  # noqa: SLF001
        return {"torch._foreach_norm": lambda: norm(x)}

    def unscale(self) -> Calls:
        """What torch.amp's GradScaler calls."""
        x, found, scale = [self._vector()], self._vector(count=1), self._vector(count=1)
        amp = self._torch._amp_foreach_non_finite_check_and_unscale_
        return {"torch.amp's unscale (no norm)": lambda: amp(x, found, scale)}

    def step(self, kind: str, **options: Any) -> Calls:
        """A sum over a stack, the fused optimizer, and the copy in bfloat16."""
        torch, k = self._torch, self._k
        param = torch.nn.Parameter(self._vector())
        sources = [self._vector(torch.bfloat16) for _ in range(k)]
        copy = self._vector(torch.bfloat16)
        param.grad = self._vector()
        optimizer = getattr(torch.optim, kind)([param], lr=1e-3, fused=True, **options)

        def average_and_step() -> None:
            torch.sum(torch.stack(sources), 0, dtype=torch.float32, out=param.grad)
            param.grad.div_(k)
            optimizer.step()
            copy.copy_(param.detach())

        return {f"torch.stack, sum, {kind}(fused), copy_": average_and_step}

    def quantise(self) -> Calls:
        """The compiled expression, without packing scales and codes together."""
        torch = self._torch
        if self._n % 256 != 0:
            return {}
        x = self._vector().view(-1, 256)

        def blocks(values: Any) -> Any:
            scale = values.abs().amax(1, keepdim=True) / 127
            codes = torch.round(values / scale).to(torch.int8)
            return scale, codes, values - codes * scale

        compiled = torch.compile(blocks)
        return {"torch.compile": lambda: compiled(x)}

    def top(self) -> Calls:
        """The selection without the residual."""
        torch = self._torch
        x = torch.randn(self._n, device=self._device)
        kept = max(1, self._n // 100)
        return {"torch.topk of abs": lambda: torch.topk(x.abs(), kept)}


class RowPeers:
    """Peers of the row kernels; their ids are uniform."""

    def __init__(self, torch: Any, device: Any, options: Options) -> None:
        """Allocate nothing yet."""
        self._torch = torch
        self._device = device
        self._n = options.rows
        self._dim = options.dim

    def makers(self) -> dict[str, Callable[[], Calls]]:
        """Return by beginning of a case's name what makes its peers."""
        return {
            "unique ids": self.unique,
            "segment sum": self.sums,
            "gather": self.gather,
            "put": self.put,
            "apply sgd": self.descend,
        }

    def _ids(self) -> Any:
        high = 8 * self._n
        return self._torch.randint(0, high, (self._n,), device=self._device)

    def _table(self) -> Any:
        return self._torch.full((8 * self._n, self._dim), 0.01, device=self._device)

    def _rows(self, count: int) -> Any:
        return self._torch.full((count, self._dim), 0.01, device=self._device)

    def unique(self) -> Calls:
        """Distinct ids and where they are."""
        torch, ids = self._torch, self._ids()
        return {"torch.unique": lambda: torch.unique(ids, return_inverse=True)}

    def sums(self) -> Calls:
        """Sums in the order of atomics."""
        torch, rows = self._torch, self._rows(self._n)
        distinct, inverse = torch.unique(self._ids(), return_inverse=True)
        out = self._rows(len(distinct))

        def add() -> None:
            out.zero_()
            out.index_add_(0, inverse, rows)

        return {"torch zero_, index_add_": add}

    def gather(self) -> Calls:
        """Rows by index."""
        torch, table = self._torch, self._table()
        distinct = torch.unique(self._ids())
        return {"torch.index_select": lambda: torch.index_select(table, 0, distinct)}

    def put(self) -> Calls:
        """Rows by index, written."""
        table, distinct = self._table(), self._torch.unique(self._ids())
        rows = self._rows(len(distinct))
        return {"torch index_copy_": lambda: table.index_copy_(0, distinct, rows)}

    def descend(self) -> Calls:
        """A step of SGD."""
        table, distinct = self._table(), self._torch.unique(self._ids())
        rows = self._rows(len(distinct))
        return {"torch index_add_": lambda: table.index_add_(0, distinct, rows, alpha=-0.1)}
