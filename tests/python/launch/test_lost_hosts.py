"""gradring run --keep-going and --restart-ranks: a host is lost whole, and may come back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from launcher_runs import LIVE, Run, patched, read_error, wait_for_end

pytestmark = pytest.mark.timeout(90)

# Programs that lose a host once the test has opened the named pipe `lose`: the fixture does. The
# launcher has to know by then that the others have joined, or it starts nobody again.

# The loop of docs/training.md until all are back. Whoever is in `lose`, by rank and life, ends what
# had started it in its fifth step for each life.
LOOP = (
    LIVE
    + """
import numpy as np
import gradring as gr
def life():
    with open(f"lives{rank}", "a+") as lives:
        lives.write("x")
        lives.flush()
        lives.seek(0)
        return len(lives.read())
def train(lose, how=signal.SIGKILL):
    mine, comm, shared, step = life(), gr.init(), None, 0
    print("joined", rank, flush=True)
    while step < 12:
        try:
            if comm is not shared:
                step, shared = int(comm.broadcast(np.array([step]))[0]), comm
            comm.all_reduce(np.ones(1))
            if step == 5 * mine and (rank, mine) in lose:
                if mine == 1: open("lose").read()
                os.kill(os.getppid(), how)
                signal.pause()
            step += step < 8 or comm.world_size == 3
            if step < 12: comm = comm.grow()
        except gr.PeerLost:
            comm = comm.shrink()
    print("end", rank, comm.rank, comm.world_size, flush=True)
"""
)

# Host blue is lost in the job's first step; rank 0 does what comes behind this.
LOSE_BLUE = (
    LIVE
    + """
import gradring as gr
comm = gr.init()
comm.barrier()
print("joined", rank, flush=True)
if rank == 1:
    open("lose").read()
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
"""
)
GO_ON = LOSE_BLUE + "try: comm.barrier()\nexcept gr.PeerLost: comm = comm.shrink()\n"
UNTIL_TOLD = "if rank == 0: open('gate').read()\n"

# Of a job that gives up a host sooner than one in use, and of one that waits so long for an answer.
TWO_TRIES = "from gradring.launch.outcome import Restarts; Restarts.MOST = 2\n"
PATIENCE = (
    "from gradring.launch.lost.away import AwayHosts; first = AwayHosts.__init__\n"
    "AwayHosts.__init__ = lambda self, _: first(self, {})\n"
)


Lose = Callable[..., Run]


@pytest.fixture
def lose(tmp_path: Path) -> Iterator[Lose]:
    """Starts a job, and has a host lost once all its ranks are heard to have joined."""
    os.mkfifo(tmp_path / "lose")
    runs: list[Run] = []

    def lose(program: str, *options: str, patch: str = "") -> Run:
        (tmp_path / "program.py").write_text(program)
        command = patched(patch, *options, "program.py")
        process = subprocess.Popen(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
        runs.append(Run(process))
        runs[-1].until("joined", times=3)
        (tmp_path / "lose").write_text("")
        return runs[-1]

    yield lose
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[str, ...]:
    """Options for two hosts, red with rank 0 and blue with ranks 1 and 2.

    What is in files `again-red` and `again-blue` is run by their later starts in the place of ssh.
    """
    ssh = tmp_path / "fake-ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        "host=$1; shift\n"
        "[ -e been-$host ] && [ -e again-$host ] && exec sh ./again-$host\n"
        "touch been-$host\n"
        'exec setsid --wait sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    (tmp_path / "hosts").write_text("red\nblue slots=2\n")
    return ("--hosts", "hosts", "--ssh", str(ssh), "--rendezvous", "127.0.0.1:0")


def ends_of(lines: list[str]) -> list[str]:
    return sorted(line.partition(" end ")[2] for line in lines if " end " in line)


@pytest.mark.parametrize(
    ("lost", "ends"), [("red", ["0 2 3", "1 0 3", "2 1 3"]), ("blue", ["0 0 3", "1 . 3", "2 . 3"])]
)
def test_a_host_that_is_lost_is_started_again_and_its_ranks_join_the_others(
    lose: Lose, hosts: tuple[str, ...], lost: str, ends: list[str]
) -> None:
    """Red is that of rank 0, where the ranks had met."""
    victim, ranks, them = (0, "rank 0", "it") if lost == "red" else (1, "ranks 1-2", "them")
    run = lose(LOOP + f"train([({victim}, 1)])\n", *hosts, "--restart-ranks")
    code, lines, err = run.finish()
    assert code == 0, err
    for end, pattern in zip(ends_of(lines), ends, strict=True):
        assert re.fullmatch(pattern, end)
    again = rf"starting {them} again in 0\.1 s, to join the others\n"
    assert len(re.findall(rf"gradring: lost {lost} \({ranks}\): .*; {again}", err)) == 1, err
    assert f"gradring: {lost} is back; starting {ranks} again\n" in err
    assert err.count("is in the job again") == len(ends) - ends.count("0 0 3") - (lost == "red") * 2
    assert " failed" not in err


def test_a_host_that_is_lost_twice_comes_back_after_pauses_that_grow(
    lose: Lose, hosts: tuple[str, ...]
) -> None:
    run = lose(LOOP + "train([(1, 1), (1, 2)])\n", *hosts, "--restart-ranks")
    code, lines, err = run.finish()
    assert code == 0, err
    assert len(ends_of(lines)) == 3
    assert re.findall(r"lost blue \(ranks 1-2\): .* again in (.*) s, to", err) == ["0.1", "0.2"]


def test_a_host_where_what_had_started_the_ranks_was_asked_to_end_is_started_again(
    lose: Lose, hosts: tuple[str, ...]
) -> None:
    run = lose(LOOP + "train([(1, 1)], signal.SIGTERM)\n", *hosts, "--restart-ranks")
    code, lines, err = run.finish()
    assert code == 0, err
    assert len(ends_of(lines)) == 3
    assert "lost blue (ranks 1-2): what had started its ranks was asked to end; starting" in err


@pytest.mark.parametrize("goes_on", [True, False])
def test_with_keep_going_the_others_go_on_without_a_lost_host_and_it_is_told_once(
    lose: Lose, hosts: tuple[str, ...], *, goes_on: bool
) -> None:
    program = GO_ON if goes_on else LOSE_BLUE + "comm.barrier()\n"
    code, lines, err = lose(program + "print('done')\n", *hosts, "--keep-going").finish()
    assert (code, "[0] done" in lines) == (1, goes_on), err
    (line,) = [line for line in err.splitlines() if "lost blue" in line]
    assert re.fullmatch(r"gradring: lost blue \(ranks 1-2\): .*; the others go on", line)
    end = "finished" if goes_on else "ended with exit code 1"
    assert f"gradring: after that: rank 0 {end}\n" in err
    assert "failed first" not in err


def test_without_these_options_a_lost_host_stops_the_job(
    lose: Lose, hosts: tuple[str, ...]
) -> None:
    code, _, err = lose(GO_ON + "signal.pause()\n", *hosts).finish()
    assert code == 1
    assert re.search(r"^gradring: lost blue \(ranks 1-2\): exit code \d+$", err, re.MULTILINE)
    assert "after that: rank 0 stopped; ranks 1-2 unknown: the host did not say" in err


@pytest.mark.parametrize("option", ["--keep-going", "--restart-ranks"])
@pytest.mark.parametrize("words", ["", f"{'gradring-agent 5'!r}"])
def test_a_host_that_is_lost_before_its_ranks_were_started_is_a_failure_of_the_start(
    hosts: tuple[str, ...], tmp_path: Path, option: str, words: str
) -> None:
    (tmp_path / "been-blue").touch()
    (tmp_path / "again-blue").write_text(f"echo {words}\nexit 7\n")
    command = patched("", *hosts, option, "sleep", "1000")
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    what = "lost" if words else "could not start anything on"
    assert f"gradring: {what} blue (ranks 1-2): exit code 7\n" in ended.stderr
    assert "after that" not in ended.stderr


@pytest.mark.parametrize("option", ["--keep-going", "--restart-ranks"])
def test_a_host_with_a_server_on_it_ends_the_job(
    lose: Lose, hosts: tuple[str, ...], option: str
) -> None:
    options = (*hosts, "--servers", "2", option)
    code, _, err = lose(GO_ON + "signal.pause()\n", *options).finish()
    assert code == 1
    assert "gradring: lost blue (ranks 1-2, server 1): " in err


def test_a_host_of_workers_comes_back_to_servers_on_another_one(
    lose: Lose, hosts: tuple[str, ...]
) -> None:
    program = LIVE + (
        "import numpy as np\n"
        "import gradring as gr\n"
        "ps = gr.ps.connect()\n"
        "print('joined', flush=True)\n"
        "table = ps.dense_table('t', 1, optimizer=gr.optim.SGD(lr=1.0))\n"
        "first = rank == 1 and not os.path.exists('been')\n"
        "if first: open('been', 'w').close()\n"
        "table.push(np.ones(1, np.float32))\n"
        "if first: open('lose').read(); os.kill(os.getppid(), signal.SIGKILL)\n"
        "while float(table.pull()[0]) > -4: pass\n"
        "print('end', rank, 'GRADRING_NEWCOMER' in os.environ)\n"
    )
    options = (*hosts, "--servers", "1", "--restart-ranks")
    code, lines, err = lose(program, *options).finish()
    assert code == 0, err
    assert ends_of(lines) == ["0 False", "1 False", "2 False"]


def test_a_job_begins_when_its_last_host_answers_though_another_one_was_lost_meanwhile(
    hosts: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("green", "lose", "gate"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "hosts").write_text("red\nblue\ngreen\n")
    (tmp_path / "again-blue").write_text("exit 255\n")
    ssh = tmp_path / "fake-ssh"
    ssh.write_text(ssh.read_text().replace("shift\n", "shift\n[ $host = green ] && cat green\n"))
    (tmp_path / "program.py").write_text(
        LIVE + "import gradring as gr\n"
        "ps = gr.ps.connect()\n"
        "print('joined', flush=True)\n"
        "if rank == 0: open('gate').read()\n"
        "if rank == 1: open('lose').read(); os.kill(os.getppid(), signal.SIGKILL); signal.pause()\n"
    )
    clear = "from gradring.launch.deadline import Deadline; clear = Deadline.clear\n"
    clear += "Deadline.clear = lambda self: (print('begun', file=sys.stderr), clear(self))\n"
    options = (*hosts, "--servers", "1", "--restart-ranks", "--start-timeout", "5", "program.py")
    command = patched(clear, *options)
    with subprocess.Popen(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True) as process:
        run = Run(process)
        run.until("joined", times=2)
        (tmp_path / "lose").write_text("")
        read_error(run, "could not start anything on blue")
        (tmp_path / "green").write_text("")
        read_error(run, "begun")
        (tmp_path / "gate").write_text("")
        code, _, err = run.finish()
    assert code == 0, err


@pytest.mark.parametrize("option", ["--keep-going", "--restart-ranks"])
def test_where_no_host_is_left_the_first_that_was_lost_is_named(
    lose: Lose, hosts: tuple[str, ...], option: str
) -> None:
    program = LOSE_BLUE + (
        "try: comm.barrier()\n"
        "except gr.PeerLost: os.kill(os.getppid(), signal.SIGKILL)\n"
        "signal.pause()\n"
    )
    code, _, err = lose(program, *hosts, option).finish()
    assert code == 1
    assert re.findall(r"lost (\w+)", err)[:2] == ["blue", "red"], err
    assert err.count("the others go on") == (option == "--keep-going")
    assert err.endswith("after that: rank 0 unknown: the host did not say\n")


@pytest.mark.parametrize("keeps_going", [True, False])
def test_a_host_that_no_start_brings_back_fails_the_job_or_is_done_without(
    lose: Lose, hosts: tuple[str, ...], tmp_path: Path, *, keeps_going: bool
) -> None:
    (tmp_path / "again-blue").write_text("echo no route >&2\nexit 255\n")
    os.mkfifo(tmp_path / "gate")
    options = (*hosts, "--restart-ranks", *(["--keep-going"] if keeps_going else []))
    run = lose(GO_ON + UNTIL_TOLD, *options, patch=TWO_TRIES)
    said = read_error(run, "in a row were in vain")
    if keeps_going:
        (tmp_path / "gate").write_text("")
    code, _, err = run.finish()
    said += err
    assert code == 1
    try_ = "could not start anything on blue (ranks 1-2): exit code 255; "
    assert f"{try_}starting them again in 0.2 s, to join the others\n" in said
    assert f"{try_}not started again: 2 starts in a row were in vain\n" in said
    assert said.count("blue: no route\n") == 2
    assert f"after that: rank 0 {'finished' if keeps_going else 'stopped'}\n" in said


def test_a_host_that_does_not_answer_again_is_given_up_and_tried_once_more(
    lose: Lose, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "again-blue").write_text("echo $$ >> silent\nexec 3>&1 cat >/dev/null\n")
    patch = TWO_TRIES + PATIENCE.format(0.1)
    run = lose(GO_ON + "signal.pause()\n", *hosts, "--restart-ranks", patch=patch)
    code, _, err = run.finish()
    assert code == 1
    assert err.count("on blue (ranks 1-2): no answer within 30 s; ") == 2, err
    for pid in (tmp_path / "silent").read_text().split():
        wait_for_end(int(pid))


def test_a_job_that_the_others_finish_does_not_wait_for_a_lost_host(
    lose: Lose, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("silent", "gate"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "again-blue").write_text("echo $$ > silent\nexec 3>&1 cat >/dev/null\n")
    options = (*hosts, "--restart-ranks", "--grace", "1000")
    run = lose(GO_ON + UNTIL_TOLD, *options, patch=PATIENCE.format(1000))
    silent = int((tmp_path / "silent").read_text())
    (tmp_path / "gate").write_text("")
    code, _, err = run.finish()
    assert code == 0
    assert "gradring: ranks 1-2 were not let in again before the others had ended\n" in err
    wait_for_end(silent)


# Where the network is cut, what ssh had started notices nothing: it keeps both its ends open.
CUT_SSH = """#!/bin/sh
host=$1; shift
mkfifo $host-in-$$ $host-out-$$
setsid sh -c "$*" 0<>$host-in-$$ 1<>$host-out-$$ &
cat $host-out-$$ &
echo $! > cut-$host
exec cat > $host-in-$$
"""


def test_a_host_that_was_only_cut_off_has_no_old_ranks_beside_the_new_ones(
    lose: Lose, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    """Nor what these had started."""
    program = LOOP.replace("os.kill(os.getppid(), how)", "os.kill(int(open('cut-blue').read()), 9)")
    program += (
        "def is_alive(pid):\n"
        "    try: return open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0] != 'Z'\n"
        "    except OSError: return False\n"
        "if 'GRADRING_NEWCOMER' in os.environ:\n"
        "    print('left', *filter(is_alive, open('old').read().split()), flush=True)\n"
        "elif rank:\n"
        "    sleeper = [sys.executable, '-c', 'import signal\\nwhile True: signal.pause()']\n"
        "    stray = subprocess.Popen(sleeper, start_new_session=True)\n"
        "    with open('old', 'a') as old: print(os.getppid(), os.getpid(), stray.pid, file=old)\n"
        "train([(1, 1)])\n"
    )
    (tmp_path / "fake-ssh").write_text(CUT_SSH)
    code, lines, err = lose(program, *hosts, "--restart-ranks").finish()
    assert code == 0, err
    assert len(ends_of(lines)) == 3
    assert [line[4:] for line in lines if "left" in line] == ["left"] * 2
    assert "lost blue (ranks 1-2): " in err


def test_ctrl_c_while_a_host_is_away_starts_nothing(lose: Lose, hosts: tuple[str, ...]) -> None:
    long = "from gradring.launch.outcome import Restarts; Restarts.FIRST_PAUSE_SECONDS = 60\n"
    long += "Restarts.LONGEST_PAUSE_SECONDS = 60\n"
    run = lose(GO_ON + "signal.pause()\n", *hosts, "--restart-ranks", patch=long)
    read_error(run, "starting them again in 60.0 s")
    run.process.send_signal(signal.SIGINT)
    code, _, err = run.finish()
    assert code == 130
    assert "again" not in err.partition("SIGINT: stopping all ranks (once more")[2]


def test_ranks_of_this_machine_come_back_when_what_had_started_them_is_killed(
    lose: Lose, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text("localhost\nblue slots=2\n")
    run = lose(LOOP + "train([(0, 1)])\n", *hosts, "--restart-ranks")
    code, lines, err = run.finish()
    assert code == 0, err
    assert ends_of(lines) == ["0 2 3", "1 0 3", "2 1 3"]
    assert "gradring: lost localhost (rank 0): killed by SIGKILL (kill -9, or the kernel" in err
