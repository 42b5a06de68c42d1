"""gradring.torch.EmbeddingCollection: what its layers do, in one round trip."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import gradring as gr
import gradring.torch as gt
from conftest import GetWorld
from exact_server import ExactServer, ExactStore

RULE = gr.optim.SGD(lr=1.0)
MODES = [gr.Sync(via="ps"), gr.BoundedStaleness(1), gr.Async(), gr.Geo(k_steps=1), gr.Hybrid()]
Features = dict[str, Any]


@pytest.fixture
def comm(world: GetWorld) -> Any:
    """A communicator of one."""
    return world(1, "tcp").comms[0]


class Counted(ExactStore):
    """Counts the calls that are a round trip each, if they ask for something."""

    def __init__(self, server: ExactServer) -> None:
        vars(self).update(vars(server.client(0)))
        self.counts: Counter[str] = Counter()

    def pull(self, pulls: Any, gate: Any = None) -> Any:
        # Modes have tables of their own.
        if any(str(each.table).startswith("e/") and len(each.ids) for each in pulls):
            self.counts["pull"] += 1
        return super().pull(pulls, gate)

    def begin_pull(self, pulls: Any, gate: Any = None) -> Any:
        self.counts["begin_pull"] += 1
        return super().begin_pull(pulls, gate)

    def push(self, pushes: Any, round_: Any = None) -> Any:
        self.counts["push"] += any(str(each.table).startswith("e/") for each in pushes)
        return super().push(pushes, round_)


def layers(ps: Any, device: Any = None) -> dict[str, gt.Embedding]:
    """Of several widths, rules and poolings; two features have one."""
    uniform: Any = {"init": gr.init.Uniform(0.5), "ps": ps, "device": device}
    item = gt.Embedding(
        "e/item", 3, optimizer=gr.optim.Adagrad(lr=0.1), pooling="mean", **uniform, padding_idx=0
    )
    return {
        "user.id": gt.Embedding("e/user", 2, optimizer=RULE, **uniform),
        "keys": item,
        "seen": item,
        "tags": gt.Embedding("e/tag", 4, optimizer=RULE, pooling="sum", **uniform),
        "best": gt.Embedding("e/best", 2, optimizer=RULE, pooling="max", **uniform),
    }


def batch(step: int) -> Features:
    few = torch.tensor([[1, 2 + step], [2, 0]])
    flat, offsets = torch.tensor([4, step, 4]), torch.tensor([0, 0])
    return {
        "best": few,
        "seen": (torch.tensor([], dtype=torch.int64), offsets),
        "tags": (flat, offsets, torch.tensor([0.5, 2.0, 1.0])),
        "keys": few,
        "user.id": torch.tensor([1 << 60, step]),
    }


class OneByOne(torch.nn.Module):
    """The same without a collection."""

    def __init__(self, made: dict[str, gt.Embedding]) -> None:
        super().__init__()
        self.features, self.all = made, torch.nn.ModuleList(made.values())

    def forward(self, given: Features) -> Features:
        return {
            name: layer(*(given[name] if isinstance(given[name], tuple) else (given[name],)))
            for name, layer in self.features.items()
            if name in given
        }

    def prefetch(self, given: Features) -> None:
        for name, layer in self.features.items():
            layer.prefetch(given[name][0] if isinstance(given[name], tuple) else given[name])


def trained(
    kind: Any, mode: Any, comm: Any, server: ExactServer, *, prefetches: bool, device: Any
) -> tuple[list[Features], Any]:
    """The outputs of some steps, and the rows behind them."""
    ps = server.client(0)
    model = kind(layers(None if mode else ps, device))
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer: Any = torch.optim.SGD([weight], lr=1.0)
    if mode is not None:
        optimizer = gt.distributed(optimizer, mode, model=model, comm=comm, ps=ps)
    outputs = []
    for step in range(4):
        out = model(batch(step))
        outputs.append(out)
        if prefetches:
            model.prefetch(batch(step + 1))
        sum((rows**2).sum() * weight for rows in out.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not prefetches:  # Else it would forget them.
            for layer in model.features.values():
                layer.flush()
    if mode is not None:
        optimizer.close()
    tables = [name for name in server.tables if name.startswith("e/")]
    return outputs, {name: server.values(name) for name in tables}


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("mode", [None, *MODES], ids=str)
def test_a_collection_gives_and_trains_what_its_layers_do_one_by_one(
    comm: Any, mode: Any, device: Any
) -> None:
    outputs, rows = zip(
        *(
            trained(kind, mode, comm, ExactServer(), prefetches=False, device=device)
            for kind in (gt.EmbeddingCollection, OneByOne)
        ),
        strict=True,
    )
    for ours, theirs in zip(*outputs, strict=True):
        assert list(ours) == list(theirs) == ["user.id", "keys", "seen", "tags", "best"]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert sorted(rows[0]) == ["e/best", "e/item", "e/tag", "e/user"]
    for name, of_table in rows[0].items():
        assert of_table.keys() == rows[1][name].keys()
        for key, row in of_table.items():
            np.testing.assert_array_equal(row, rows[1][name][key])


@pytest.mark.parametrize("mode", [gr.Sync(via="ps"), gr.BoundedStaleness(0)], ids=str)
def test_rows_prefetched_for_a_collection_are_as_new_as_those_that_were_not(
    comm: Any, mode: Any
) -> None:
    outputs = [
        trained(gt.EmbeddingCollection, mode, comm, ExactServer(), prefetches=each, device=None)[0]
        for each in (False, True)
    ]
    for ours, theirs in zip(*outputs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("mode", [None, *MODES], ids=str)
def test_a_step_of_a_collection_is_one_round_trip_each_way(comm: Any, mode: Any) -> None:
    store = Counted(ExactServer())
    model = gt.EmbeddingCollection(layers(None if mode else store))
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer: Any = torch.optim.SGD([weight], lr=1.0)
    if mode is not None:
        optimizer = gt.distributed(optimizer, mode, model=model, comm=comm, ps=store)
    with torch.no_grad():
        model(batch(0))
    assert store.counts["pull"] == 1
    sum(rows.sum() for rows in model(batch(1)).values()).backward()
    optimizer.step()
    model.features["tags"].flush()
    assert store.counts["push"] == 1
    coming = {"user.id": torch.tensor([90, 91]), "tags": torch.tensor([[92]])}
    model.prefetch(coming)
    optimizer.step()  # Where workers wait for each other they are asked for behind it.
    model(coming)
    assert store.counts["begin_pull"] == 1
    if mode is not None:
        optimizer.close()


def test_other_ids_than_those_prefetched_are_right() -> None:
    server = ExactServer()
    model = gt.EmbeddingCollection(layers(server.client(0))).eval()
    expected = OneByOne(layers(server.client(0))).eval()(batch(2))
    model.prefetch(batch(1))
    torch.testing.assert_close(model(batch(2)), expected, rtol=0, atol=0)


def test_what_one_layer_refuses_is_refused_before_any_is_asked() -> None:
    server = ExactServer()
    model = gt.EmbeddingCollection(layers(server.client(0)))
    ids = torch.tensor([1])
    for given, words in [
        ({"user.id": ids, "tags": torch.ones(1)}, "ids"),
        ({"user.id": (ids, torch.tensor([0]))}, "returns a row for each id"),
        ({"user.id": ids, "usr": ids, "tgs": ids}, "no feature 'usr', 'tgs'; it has 'user.id', 'k"),
        ({"user.id": [1, 2]}, "Embedding 'e/user': ids are a torch tensor, not a list"),
        ({"user.id": (ids, None, None, None)}, "feature 'user.id' has 4 entries"),
        ({"user.id": ()}, "feature 'user.id' has 0 entries"),
        (ids, "called with a dict of features and their ids, not with a Tensor"),
    ]:
        with pytest.raises(gr.InvalidArgument, match=words):
            model(given)
    for features, words in [
        ([model.features["tags"]], "takes a dict of features and their layers, not a list"),
        ({"a": torch.nn.Embedding(2, 2)}, "feature 'a' has a Embedding; .* gradring.torch.Emb"),
        ({3: model.features["tags"]}, "feature 3 has"),
    ]:
        with pytest.raises(gr.InvalidArgument, match=words):
            gt.EmbeddingCollection(features)  # type: ignore[arg-type]
    assert not server.tables
    assert model({}) == {}
    assert not server.tables


def test_layers_of_two_connections_are_asked_each_by_its_own() -> None:
    servers = ExactServer(), ExactServer()
    stores = [Counted(server) for server in servers]
    model = gt.EmbeddingCollection(
        {
            str(n): gt.Embedding(f"e/{n}", 2, optimizer=RULE, ps=stores[n % 2], pooling="sum")
            for n in range(4)
        }
    )
    sum(rows.sum() for rows in model({str(n): IDS for n in range(4)}).values()).backward()
    for n, store in enumerate(stores):
        model.features[str(n)].flush()
        assert (store.counts["pull"], store.counts["push"]) == (1, 1)
    for n, rows in model.eval()({str(n): IDS for n in range(4)}).items():
        assert list(servers[int(n) % 2].tables) == [f"e/{int(n) % 2}", f"e/{int(n) % 2 + 2}"]
        np.testing.assert_array_equal(rows, np.full((1, 2), -2))


IDS = torch.tensor([[3, 5]])


def test_after_a_first_use_that_failed_an_optimizer_may_take_all_layers(comm: Any) -> None:
    class Late(Counted):
        is_late = True

        def sparse_table(self, name: str, *args: Any, **settings: Any) -> Any:
            if self.is_late and name == "e/1":
                raise gr.TimedOut("no answer")
            return super().sparse_table(name, *args, **settings)

    store = Late(ExactServer())
    model = gt.EmbeddingCollection(
        {str(n): gt.Embedding(f"e/{n}", 2, optimizer=RULE, ps=store) for n in range(2)}
    )
    with pytest.raises(gr.TimedOut, match="no answer"):
        model({"0": IDS, "1": IDS})
    assert not any(layer.has_table for layer in model.features.values())
    store.is_late = False
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    optimizer = gt.distributed(sgd, gr.Sync(via="ps"), model=model, ps=store, comm=comm)
    sum(rows.sum() for rows in model({"0": IDS, "1": IDS}).values()).backward()
    optimizer.step()
    assert (model.eval()({"0": IDS})["0"] == -1).all()
    optimizer.close()


def test_a_copy_of_a_collection_reads_the_rows_that_the_layers_train() -> None:
    model = gt.EmbeddingCollection(layers(ExactServer().client(0)))
    sum(rows.sum() for rows in model(batch(0)).values()).backward()
    model.features["tags"].flush()
    copied = copy.deepcopy(model).eval()
    assert copied.features["keys"] is copied.features["seen"] is copied.layers[1]
    torch.testing.assert_close(copied(batch(0)), model.eval()(batch(0)), rtol=0, atol=0)
    assert copied.state_dict() == {}
    assert "'user.id': 'e/user'" in repr(model)
    assert not any(rows.requires_grad for rows in model(batch(0)).values())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Where a graph begins.
def test_a_compiled_model_has_its_rows_from_a_collection() -> None:
    def losses(make: Any) -> list[float]:
        slots = gt.EmbeddingCollection(layers(ExactServer().client(0)))
        run = make(lambda given: torch.cat([rows.sum(0) for rows in slots(given).values()]).sum())
        found = []
        for step in range(3):
            loss = run(batch(step)) * 2
            loss.backward()
            slots.features["tags"].flush()
            found.append(loss.item())
        return found

    torch._dynamo.reset()
    compiled = losses(lambda function: torch.compile(function, backend="eager"))
    assert compiled == losses(lambda function: function)
