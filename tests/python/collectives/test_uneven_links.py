"""all_reduce between hosts whose links differ: what each owns changes no bit of the result."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

import gradring as gr
from gradring.settings import config
from rank_job import Job
from thread_ranks import listening_socket

RATES = (1000, 1000, 1000, 250)
CODE = """
def bits(**options):
    out = []
    for count in (262_144, 400_001, 1_000_003):
        x = (np.random.default_rng(comm.rank).standard_normal(count) * 50).astype("f4")
        y = comm.all_reduce(x, "avg", **options)
        out.append(hashlib.sha256(y.tobytes()).hexdigest())
    return out
"""


def test_a_host_with_a_slow_link_gets_the_bits_of_an_even_division(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    listen_fd, address = listening_socket()
    try:
        job.spawn(0, listen_fd)
        for rank in range(1, len(RATES)):
            job.spawn(rank)
        settings = {
            "world_size": len(RATES), "rendezvous": address, "secret": secrets.token_bytes(32),
            "transport": "auto", "timeout_ms": 60_000, "heartbeat_timeout_ms": 20_000,
            "interface": "",
        }  # fmt: skip
        for rank, mbit in zip(job.ranks, RATES, strict=True):
            fd = listen_fd if rank.rank == 0 else -1
            rank.begin(
                "import hashlib\nfrom gradring import _core\n"
                f"comm = gr.Communicator(_core.join(rank={rank.rank}, listen_fd={fd}, "
                f"host_label='{rank.rank}', link_mbit={mbit}, **{settings!r}))\n{CODE}"
            )
        for outcome in job.outcomes():
            assert outcome.error is None, outcome
        found = job.call("result = bits()")
        assert found == [found[0]] * len(RATES)
        assert job.call("result = bits(algorithm='ring')")[0][1:] == found[0][1:]
        assert job.call("result = bits(algorithm='halving')")[0][0] == found[0][0]
        assert [rank.leave() for rank in job.ranks] == [0] * len(RATES)
    finally:
        os.close(listen_fd)
        job.clean_up()


@pytest.mark.parametrize("text", ["fast", "-5", "1.5", "1000000000"])
def test_a_rate_that_makes_no_sense_is_refused_by_name(text: str) -> None:
    with pytest.raises(gr.InvalidArgument, match="GRADRING_LINK_MBIT"):
        config.Settings.from_environ({"GRADRING_LINK_MBIT": text})
