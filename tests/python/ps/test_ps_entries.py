"""Entry by probability: which ids become rows depends on seed, table, id and count, and no more."""

from __future__ import annotations

import numpy as np

import gradring as gr
from ps_servers import join, serving

IDS, P, TIMES = 4000, 0.25, 3


def admitted(servers: int, threads: int, clients: int, seed: int = 0) -> list[set[int]]:
    """Push every id several times, through one client or another; which are rows after each."""
    order = np.random.default_rng(servers).permutation(IDS)
    found: list[set[int]] = []
    with serving(servers, threads=threads) as addresses:
        workers = [join(addresses, client=number) for number in range(clients)]
        entry = gr.ps.Probability(P)
        tables = [ps.sparse_table("t", 2, gr.optim.Sum(), entry=entry, seed=seed) for ps in workers]
        for time in range(TIMES):
            refused = 0
            for part, ids in enumerate(np.array_split(order, clients)):
                table = tables[(part + time) % clients]
                refused += table.push(ids, np.ones((len(ids), 2), np.float32)).not_admitted
            saved = tables[0].state_dict()
            found.append(set(saved["ids"].tolist()))
            assert refused == IDS - len(found[-1])
        # A row has what was pushed from when it became one.
        since = [sum(key in ids for ids in found) for key in saved["ids"].tolist()]
        np.testing.assert_array_equal(saved["rows"][:, 0], np.float32(since))
        for ps in workers:
            ps.close()
    return found


def test_chance_admits_the_same_ids_whoever_pushes_and_wherever_they_lie() -> None:
    alone = admitted(1, 1, clients=1)
    assert admitted(2, 2, clients=2) == alone
    assert admitted(1, 3, clients=2) == alone


def test_each_push_admits_about_its_share_of_those_that_are_left() -> None:
    found = admitted(1, 2, clients=1)
    before: set[int] = set()
    for ids in found:
        assert before < ids, "a row stays"
        left = IDS - len(before)
        spread = (left * P * (1 - P)) ** 0.5
        assert abs(len(ids - before) - left * P) < 4 * spread
        before = ids


def test_another_seed_admits_others() -> None:
    one, other = (admitted(1, 1, clients=1, seed=seed)[0] for seed in range(2))
    both = IDS * P * P  # As if they knew nothing of each other.
    assert abs(len(one & other) - both) < 4 * both**0.5
