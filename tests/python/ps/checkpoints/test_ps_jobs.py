"""What a server's thread for checkpoints does with a job that makes no sense, and when it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gradring.errors import InternalError
from gradring.ps.saved import checkpoint_jobs
from ps_servers import join, start_server


def test_a_job_that_is_no_text_fails_and_its_server_goes_on() -> None:
    with start_server() as server, join([server.address]) as ps:
        core = ps.calls.core
        for nonsense in (b"\xff", b"{}", b"[1]", b'{"action": "dance"}'):
            (said,) = core.await_job(core.begin_load([nonsense]))
            assert "error" in json.loads(said)
        server.require_well()


def test_a_server_whose_jobs_end_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(core: Any, job: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(checkpoint_jobs, "carry_out", breaks)
    with start_server() as server, join([server.address]) as ps:
        ps.calls.core.begin_load(["{}"])
        server._thread.join(20)
        with pytest.raises(InternalError, match="MemoryError: no more"):
            server.require_well()
