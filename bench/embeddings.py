"""What tables of their own cost a click-rate model: one by one, in a collection, or all in one.

    gradring run -n 1 --servers 1 bench/embeddings.py

Three models of one worker in `gradring.Async` take turns, round by round. A forward is one without
gradients; a step is forward, backward and `step()`. Milliseconds are medians over the rounds, with
the lowest and the highest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import gradring as gr
import gradring.torch as gt

CALLS = 10  # A round.
RULE = gr.optim.Adagrad(lr=0.1)


class Model(nn.Module):
    """Rows of all features side by side into one number."""

    def __init__(self, rows: nn.Module, width: int, read: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.rows, self.read = rows, read
        self.linear = nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.linear(self.read(self.rows, ids))
        return y


def models(tables: int, dim: int) -> dict[str, Model]:
    """Each takes ids of shape (tables, examples)."""
    places = torch.arange(tables)[:, None] << 32

    def layers(first: str) -> list[gt.Embedding]:
        return [gt.Embedding(f"{first}{n}", dim, optimizer=RULE) for n in range(tables)]

    def together(rows: Any, ids: Tensor) -> Tensor:
        return torch.cat(list(rows({str(n): each for n, each in enumerate(ids)}).values()), 1)

    collection = gt.EmbeddingCollection({str(n): e for n, e in enumerate(layers("together"))})
    packed = gt.Embedding("packed", dim, optimizer=RULE)
    width = tables * dim
    return {
        "one by one": Model(
            nn.ModuleList(layers("alone")), width,
            lambda rows, ids: torch.cat([e(each) for e, each in zip(rows, ids, strict=True)], 1),
        ),
        "collection": Model(collection, width, together),
        "one table": Model(packed, width, lambda rows, ids: rows((ids + places).t()).flatten(1)),
    }  # fmt: skip


def calls_of(name: str, model: Model, ids: Tensor) -> tuple[Any, dict[str, Callable[[], None]]]:
    """The optimizer, and what is measured."""
    adam = torch.optim.Adam(model.parameters())
    optimizer = gt.distributed(adam, gr.Async(), model=model, name=name)

    def forward() -> None:
        with torch.no_grad():
            model(ids)

    def step() -> None:
        model(ids).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return optimizer, {"forward": forward, "step": step}


def milliseconds(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description="Tables of their own, in a collection, in one.")
    parser.add_argument("--tables", type=int, default=26)
    parser.add_argument("--ids", type=int, default=512, help="of each table in a step")
    parser.add_argument("--rows", type=int, default=100_000, help="ids are drawn from so many")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    gr.init()
    ids = torch.randint(options.rows, (options.tables, options.ids))
    made = {
        name: calls_of(name, model, ids)
        for name, model in models(options.tables, options.dim).items()
    }
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(1 + options.rounds):
        for name, (_, calls) in made.items():
            for what, call in calls.items():
                took = milliseconds(call)
                if turn:  # The first makes the rows.
                    found.setdefault((name, what), []).append(took)
    for (name, what), took in found.items():
        low, high = min(took), max(took)
        print(f"{name}, {what}: {statistics.median(took):.2f} ms ({low:.2f} to {high:.2f})")
    for optimizer, _ in made.values():
        optimizer.close()


if __name__ == "__main__":
    main()
