"""A step that is refused has done nothing: neither of its dense part nor of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradring as gr
from conftest import GetWorld
from exact_server import ExactServer

SGD = gr.optim.SGD(lr=1.0)
DENSE, ROWS = np.ones(3, np.float32), np.ones((2, 2), np.float32)
MODES = [
    gr.Sync(), gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=1),
    gr.Geo(k_steps=1, outer=gr.Nesterov(lr=1, momentum=0.5)), gr.Hybrid(),
    gr.Hybrid(gr.Async(), gr.Geo(k_steps=1)), gr.Hybrid(gr.Geo(k_steps=1), gr.Sync(via="ps")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("grads", "weight", "rows", "complaint"),
    [
        ([np.ones(4, np.float32)], 1, ROWS, r"gradient 0 has shape \(4,\)"),
        ([DENSE, DENSE], 1, ROWS, "2 gradients for 1 parameters"),
        ([DENSE], 1, np.ones((1, 2), np.float32), r"gradients have shape \(1, 2\)"),
        ([DENSE], 1e39, ROWS, r"weight 1e\+39 is not a number of examples"),
        ([DENSE], 1e-46, ROWS, "weight 1e-46 is not a number of examples"),
    ],
)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_refused_step_has_done_nothing(
    world: GetWorld, mode: Any, grads: Any, weight: float, rows: Any, complaint: str
) -> None:
    param, comm = np.zeros(3, np.float32), world(1, "tcp").comms[0]
    server = ExactServer()
    with gr.distributed([param], SGD, mode, ps=server.client(0), comm=comm) as optimizer:
        first, second = (optimizer.sparse_table(name, 2, SGD) for name in ("first", "second"))
        with pytest.raises(gr.InvalidArgument, match=complaint):
            optimizer.step(grads, weight, [(first, [1, 2], ROWS), (second, [1, 2], rows)])
        optimizer.flush()
        assert not param.any()
        assert not first.pull([1, 2]).any()
        assert not second.pull([1, 2]).any()


REFUSED_GRADIENTS: dict[str, tuple[Any, str]] = {
    "masked": ([np.ma.masked_array(DENSE, [0, 1, 0])], "gradient 0 is a masked array"),
    "complex": ([np.ones(3, np.complex64)], "gradient 0 is complex64"),
    "objects": ([np.array([1, None, 2])], "gradient 0 is object"),
    "text": ([["a", "b", "c"]], "gradient 0 is <U1"),
    "ragged": ([[[1.0], [1.0, 2.0], [1.0]]], "gradient 0 makes no array"),
    "a generator": ((each for each in [DENSE]), "grads is a generator"),
    "a number": (1.0, "grads is a float"),
}


@pytest.mark.parametrize(("grads", "complaint"), REFUSED_GRADIENTS.values(), ids=REFUSED_GRADIENTS)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_what_is_no_dense_gradient_is_refused_and_nothing_is_trained(
    world: GetWorld, mode: Any, grads: Any, complaint: str
) -> None:
    param, comm = np.zeros(3, np.float32), world(1, "tcp").comms[0]
    ps = ExactServer().client(0)
    with gr.distributed([param], SGD, mode, ps=ps, comm=comm) as optimizer:
        with pytest.raises(gr.InvalidArgument, match=complaint):
            optimizer.step(grads)
        optimizer.flush()
        assert not param.any()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_tensors_are_gradients_and_those_that_are_not_dense_are_refused(
    world: GetWorld, mode: Any
) -> None:
    torch = pytest.importorskip("torch")
    param, comm = np.zeros(3, np.float32), world(1, "tcp").comms[0]
    sparse = torch.sparse_coo_tensor([[1]], torch.ones(1), (3,), check_invariants=True)
    complex_ones = torch.ones(3, dtype=torch.complex64)
    ps = ExactServer().client(0)
    with gr.distributed([param], SGD, mode, ps=ps, comm=comm) as optimizer:
        for refused in (sparse, complex_ones):
            with pytest.raises(gr.InvalidArgument, match="gradient 0 "):
                optimizer.step([refused])
        optimizer.step([torch.ones(3, requires_grad=True)])
        optimizer.step([torch.ones(3, dtype=torch.bfloat16)])
        optimizer.flush()
        if isinstance(mode, gr.Geo) and isinstance(mode.outer, gr.Nesterov):
            assert param.any()
        else:
            assert (param == -2).all()


@pytest.mark.parametrize("weight", [-1, float("nan"), "nonsense", None], ids=str)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_weight_that_makes_no_sense_is_refused_before_anything_is_done(
    world: GetWorld, mode: Any, weight: Any
) -> None:
    param, comm = np.zeros(3, np.float32), world(1, "tcp").comms[0]
    server = ExactServer()
    with gr.distributed([param], SGD, mode, ps=server.client(0), comm=comm) as optimizer:
        table = optimizer.sparse_table("t", 2, SGD)
        with pytest.raises(gr.InvalidArgument, match=f"weight '?{weight}"):
            optimizer.step([DENSE], weight, [(table, [1, 2], ROWS)])
        optimizer.flush()
        assert not param.any()
        assert not table.pull([1, 2]).any()


def test_a_geo_step_whose_new_rows_do_not_come_has_done_nothing() -> None:
    param, store = np.zeros(3, np.float32), ExactServer().client(0)
    with gr.GeoOptimizer([param], SGD, store, workers=1) as optimizer:
        first, second = (optimizer.sparse_table(name, 2, SGD) for name in ("first", "second"))
        first.pull([1, 2])
        rows = [(first, [1, 2], ROWS), (second, [1, 2], ROWS)]
        with pytest.MonkeyPatch.context() as patch:

            def fail(*_: Any) -> Any:
                raise gr.TimedOut("server 0 does not answer")

            patch.setattr(store, "pull", fail)
            with pytest.raises(gr.TimedOut, match="server 0"):
                optimizer.step([DENSE], rows=rows)
        assert not param.any()
        assert not first.pull([1, 2]).any()
        optimizer.step([DENSE], rows=rows)  # It can be repeated.
        assert (param == -1).all()
        assert (second.pull([1, 2]) == -1).all()
