"""A job's secret: to be given where its ranks may be on several hosts, else made for its user."""

from __future__ import annotations

import stat
from multiprocessing import get_context
from pathlib import Path

import pytest

from gradring.errors import InvalidArgument
from gradring.launchers.job_secret import needs_secret, secret_for, user_secret
from gradring.launchers.roles import discover
from launcher_variables import BY_HAND, OPEN_MPI, SLURM, TORCHRUN


def test_a_job_started_by_hand_needs_a_secret_and_is_told_how_to_make_one() -> None:
    role = discover({**BY_HAND, "MASTER_ADDR": "127.0.0.1"})
    with pytest.raises(InvalidArgument, match=r"export GRADRING_SECRET=.*token_hex\(32\)"):
        secret_for(role, {})


def test_a_job_over_several_hosts_needs_a_secret_whoever_started_it() -> None:
    for environ in (TORCHRUN, SLURM):
        role = discover(environ)
        assert role is not None
        assert needs_secret(role)
        with_secret = discover({**environ, "GRADRING_SECRET": "abc"})
        assert secret_for(with_secret, {}) == "abc"


def test_a_launchers_job_on_one_host_shares_a_secret_of_its_own(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    ranks = [
        {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
        for rank in range(2)
    ]
    same = {secret_for(discover(variables), environ) for variables in ranks}
    other = secret_for(discover({**OPEN_MPI, "PMIX_NAMESPACE": "5"}), environ)
    assert len(same) == 1
    assert len(other) == 64
    assert other not in same
    kept = tmp_path / "gradring" / "secret"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert (
        kept.read_text() not in same
    )  # What goes over the wire never proves another job's secret.


def test_ranks_that_make_the_secret_at_once_end_with_the_same_one(tmp_path: Path) -> None:
    with get_context("spawn").Pool(4) as pool:
        found = pool.map(user_secret, [tmp_path / "state" / "gradring"] * 16, chunksize=1)
    assert len(set(found)) == 1
    assert [path.name for path in (tmp_path / "state" / "gradring").iterdir()] == ["secret"]


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    user_secret(tmp_path)
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(InvalidArgument, match="not a private file"):
        user_secret(tmp_path)
