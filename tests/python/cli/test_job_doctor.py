"""`gradring doctor --job` says of a running job who is in what, and who is missing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradring.doctor.findings import call_text, findings, statuses
from gradring.doctor.jobs import Report, reports_of
from gradring.errors import InvalidArgument
from launcher_runs import LIVE, launching
from rank_job import Job, StartJob

pytestmark = pytest.mark.timeout(120)

SECRET = "the secret of a test's job, long enough"


def doctor(*arguments: str) -> tuple[int, str]:
    """Run `gradring doctor --job`; its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "gradring", "doctor", "--job", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "GRADRING_SECRET": SECRET},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def address_of(ranks: Job) -> str:
    text = str(ranks.ranks[0].call("result = comm.describe(0)"))
    return text.partition("(")[2].rstrip(")")


def start(job: StartJob, size: int, **options: Any) -> tuple[Job, str]:
    ranks = job(size, secret=SECRET, **options)
    return ranks, address_of(ranks)


def ask_until(address: str, pattern: str) -> str:
    """Ask until the answer has the pattern: the ranks take a moment to get there."""
    while True:
        text = doctor(address)[1]
        if re.search(pattern, text):
            return text


def test_it_names_the_rank_that_is_missing_while_the_others_are_stuck_in_a_call(
    job: StartJob,
) -> None:
    ranks, address = start(job, 3)
    ranks.call("comm.barrier()")
    for rank in ranks.others(1):
        rank.begin("comm.all_reduce(np.ones(7, np.float32))")
    text = ask_until(address, "ranks 0, 2 called")
    assert re.search(
        r"rank 1 is missing in all_reduce #2 \(float32 x 7, sum\), which ranks 0, 2 "
        r"called: its last call, barrier #1, ended \d+\.\d s before",
        text,
    ), text
    assert re.search(r"^0 +all +all_reduce #2 \(float32 x 7, sum\) +\d", text, re.MULTILINE), text
    assert re.search(r"^1 +all +in no call; the last was barrier #1", text, re.MULTILINE), text
    assert doctor(address)[0] == 1
    ranks.ranks[1].call("comm.all_reduce(np.ones(7, np.float32))")
    for outcome in ranks.outcomes(ranks.others(1)):
        assert outcome.error is None
    assert doctor(address)[0] == 0


def test_it_says_which_rank_is_frozen_even_if_that_is_the_one_it_was_told_to_ask(
    job: StartJob,
) -> None:
    ranks, address = start(job, 3, transport="shm", heartbeat_timeout=60.0)
    ranks.ranks[0].freeze()
    code, text = doctor(address)
    assert code == 1
    assert "rank 0 does not answer: frozen" in text, text
    assert re.search(r"^2 +in no call yet", text, re.MULTILINE), text
    os.kill(ranks.ranks[0].pid, signal.SIGCONT)


def test_what_other_programs_call_their_sockets_does_not_disturb_it(job: StartJob) -> None:
    ranks, address = start(job, 2)
    ranks.call("comm.barrier()")
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(b"\0 \xff @gradring-\xff" + os.urandom(8).hex().encode())
        code, text = doctor(address)
    assert code == 0, text


def test_it_shows_messages_that_nobody_answers(job: StartJob) -> None:
    ranks, address = start(job, 2)
    ranks.ranks[0].begin("comm.recv(np.ones(3), 1, tag=9)")
    text = ask_until(address, "recv from rank 1")
    assert "rank 0 waits in recv from rank 1 with tag 9, which is sending nothing" in text
    ranks.ranks[1].call("comm.send(np.ones(3), 0, tag=9)")
    assert ranks.ranks[0].outcome().error is None


# Says that it is ready, and goes on once the test has opened the gate.
UNTIL_GATE = LIVE + (
    "import gradring as gr\ncomm = gr.init()\ncomm.barrier()\n"
    "print('ready', flush=True)\n"
    "if rank == 1: open('gate').read()\ncomm.barrier()\n"
)


# With servers of others the ranks take the secret that is there, which may be any bytes.
ANY_SECRET = {
    "GRADRING_SERVERS": "127.0.0.1:1",
    "GRADRING_SECRET": os.fsdecode(b"caf\xe9 and thirty more characters"),
}


@pytest.mark.parametrize("environ", [{}, ANY_SECRET], ids=["secret-of-the-launcher", "any-bytes"])
def test_it_finds_the_job_of_a_launcher_by_its_process_id(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    os.mkfifo(tmp_path / "gate")
    with launching(tmp_path) as launch:
        run = launch(UNTIL_GATE, "-n", "2", "--quiet", environ=environ)
        run.until("ready", times=2)
        done = subprocess.run(
            [sys.executable, "-m", "gradring", "doctor", "--json", "--job", str(run.process.pid)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        found = json.loads(done.stdout)
        assert [rank["record"]["rank"] for rank in found["ranks"]] == [0, 1], done
        with (tmp_path / "gate").open("w"):
            pass
        assert run.finish()[0] == 0


def test_a_launcher_that_a_rank_has_started_is_asked_for_its_own_job(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(UNTIL_GATE)
    os.mkfifo(tmp_path / "gate")
    program = LIVE + (
        "if rank == 0:\n"
        "    command = [sys.executable, '-m', 'gradring', 'run', '-n', '2', 'inner.py']\n"
        "    inner = subprocess.Popen(command)\n"
        "    print('inner', inner.pid, flush=True)\n"
        "    sys.exit(inner.wait())\n"
    )
    with launching(tmp_path) as launch:
        run = launch(program, "-n", "3", "--quiet")
        launcher = run.until(r"inner (\d+)")[0][1]
        run.until("ready", times=2)
        text = doctor(launcher, "--json")[1]
        assert [rank["record"]["rank"] for rank in json.loads(text)["ranks"]] == [0, 1]
        with (tmp_path / "gate").open("w"):
            pass
        assert run.finish()[0] == 0


def test_a_wrong_secret_or_no_such_job_is_an_error_that_says_so(job: StartJob) -> None:
    _, address = start(job, 2)
    with pytest.raises(InvalidArgument, match="GRADRING_SECRET"):
        reports_of(address, {"GRADRING_SECRET": "wrong"})
    with pytest.raises(InvalidArgument, match="set GRADRING_SECRET"):
        reports_of(address, {})
    with pytest.raises(InvalidArgument, match="no rank of a job"):
        reports_of(str(os.getpid()), {})


def test_a_job_that_is_still_joining_is_told_from_one_that_is_none(
    tmp_path: Path,
) -> None:
    program = LIVE + (
        "import gradring as gr\n"
        "if rank == 1: print('ready', flush=True); open('gate').read()\n"
        "gr.init().barrier()\n"
    )
    os.mkfifo(tmp_path / "gate")
    with launching(tmp_path) as launch:
        run = launch(program, "-n", "2", "--quiet")
        run.until("ready")
        code, text = doctor(str(run.process.pid))
        assert code == 2
        assert "no rank of the job at" in text
        assert "ranks answer once all have joined" in text
        with (tmp_path / "gate").open("w"):
            pass
        assert run.finish()[0] == 0


def test_it_reads_what_a_failure_left_and_names_who_left_nothing(
    job: StartJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "records"
    monkeypatch.setenv("GRADRING_RECORD", str(folder))
    ranks = job(3)
    ranks.call("comm.barrier()")
    for rank in ranks.others(2):
        rank.begin("comm.all_reduce(np.ones(7))")
    for rank in ranks.others(2):
        rank.wait_until_it_sleeps()
    ranks.ranks[2].kill()
    ranks.outcomes(ranks.others(2))
    code, text = doctor(str(folder))
    assert code == 1
    assert "rank 2 left no record" in text, text
    assert re.search(r"rank 0 failed: .*rank 2 \(", text), text
    assert re.search(r"^1 +all +failed in all_reduce #2 \(float64 x 7, sum\)", text, re.MULTILINE)


def operation(seq: int, state: str, begin: int, **more: Any) -> dict[str, Any]:
    ended = {} if state == "started" else {"end": begin + 1000}
    return {"seq": seq, "op": "barrier", "state": state, "begin": begin, **ended, **more}


def report(rank: int, *operations: dict[str, Any], offset: int = 0) -> Report:
    group = {"id": "01", "ranks": [0, 1], "is_closed": False, "failure": None,
             "operations": list(operations), "messages": []}  # fmt: skip
    record = {"rank": rank, "now": 10**10 + offset, "failure": None, "communicators": [group]}
    return Report(rank, record, offset=offset)


def test_ranks_in_different_calls_are_told_apart() -> None:
    other = operation(5, "started", 10, op="broadcast", dtype="int8", count=3, root=1)
    (found,) = findings([report(0, operation(5, "started", 10)), report(1, other)])
    assert found == (
        "different calls: rank 0 called barrier #5 "
        "but rank 1 called broadcast #5 (int8 x 3, root 1)"
    )
    assert call_text(other) == "broadcast #5 (int8 x 3, root 1)"


def test_uneven_arrival_is_measured_on_one_clock() -> None:
    begins = [1_000_000 * i for i in range(1, 9)]
    even = [operation(i, "finished", begin) for i, begin in enumerate(begins)]
    # The other rank's clock is an hour ahead; that is no lateness.
    hour = 3600 * 10**9
    ahead = [operation(i, "finished", begin + hour) for i, begin in enumerate(begins)]
    assert not findings([report(0, *even), report(1, *ahead, offset=hour)])
    late = [operation(i, "finished", begin + hour + 5_000_000) for i, begin in enumerate(begins)]
    (found,) = findings([report(0, *even), report(1, *late, offset=hour)])
    assert "rank 1 came last in 8 of the last 8 operations; 5.0 ms" in found


def test_a_span_of_any_name_is_a_short_word_of_the_table() -> None:
    idle = report(0, operation(5, "finished", 10))
    assert idle.record is not None
    idle.record["spans"] = [{"name": name} for name in ("a\x1b[2J\n", "x" * 1000, "laden für 2")]
    (status,) = statuses(idle)
    assert status.doing.isprintable()
    assert r"'a\x1b[2J\n'" in status.doing
    assert "'laden für 2'" in status.doing
    assert len(status.doing) < 200


def test_an_operation_that_is_under_way_says_how_far_it_is() -> None:
    moving = operation(2, "started", 10**9, to_receive=100, received=40, to_send=7, sent=7,
                       awaited=1)  # fmt: skip
    (status,) = statuses(report(0, moving))
    assert (status.seconds, status.waits_for) == (9.0, "rank 1")
    assert status.moved == "40 of 100 bytes received"
