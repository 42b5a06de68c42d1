"""A job grows from one host to two, and goes on on the other when the first loses its leader.

Under `gradring run` it has a host back that was cut off, and no rank of before beside the new ones.
"""

from __future__ import annotations

import pytest

from cabled_hosts import on_cabled_hosts

pytestmark = pytest.mark.timeout(60)

# Ranks 0 and 1 begin on the near host. One process joins from the far host; rank 0 dies; then one
# joins from each host, at the place that the survivors name. All add 1 a step, up to 40 steps of
# four ranks.
JOB = """
RANK = '''
import os, sys, numpy as np, gradring as gr

role, point = sys.argv[1:]
comm = gr.join(point, timeout=30) if role.startswith("new") else gr.init(timeout=30)
state = np.zeros(50_000)
step, full, shared, sizes = 0, 0, None, []
while full < 40:
    try:
        if comm is not shared:
            step, full = comm.broadcast(np.array([step, full])).tolist()
            comm.broadcast(state)
            sizes.append(comm.world_size)
            shared = comm
        state += comm.all_reduce(np.ones(50_000)) / comm.world_size
        step += 1
        full += comm.world_size == 4
        if role == "leader" and comm.world_size == 3:
            os.kill(os.getpid(), 9)
        if full < 40:
            comm = comm.grow()
    except gr.PeerLost:
        comm = comm.shrink()
        print("POINT", comm.meeting_point, flush=True)
assert (state == step).all(), (state, step)
print("DONE", comm.world_size, step, max(sizes), comm.meeting_point)
'''

def start(role, inside, rank=0, point=""):
    begin = {"RANK": str(rank), "WORLD_SIZE": "2", "RENDEZVOUS": "10.8.8.1:4000"}
    said = {"SECRET": "s" * 32, **({} if point else begin)}
    environ = {**os.environ, **{f"GRADRING_{name}": value for name, value in said.items()}}
    argv = [*inside, sys.executable, "-c", RANK, role, point]
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True)

ranks = [start("leader", []), start("survivor", [], 1), start("new", far, point="10.8.8.1:4000")]
points = [ranks[index].stdout.readline().split() for index in (1, 2)]
assert points[0] == points[1] and points[0][0] == "POINT", points
point = points[0][1]
ranks += [start("new", inside, point=point) for inside in (far, [])]
said = [rank.communicate(timeout=40)[0].split() for rank in ranks]
print(json.dumps([point, [rank.returncode for rank in ranks], said]))
"""


@pytest.mark.parametrize("tls", ["auto", "off"])
def test_a_job_takes_in_ranks_of_another_host_and_goes_on_when_its_leader_dies(tls: str) -> None:
    point, codes, said = on_cabled_hosts(JOB, GRADRING_TLS=tls)
    assert codes == [-9, 0, 0, 0, 0]
    assert point.startswith("10.8.8.1:")
    assert point != "10.8.8.1:4000"
    steps = said[1][2]
    assert said == [[], *[["DONE", "4", steps, "4", point]] * 4]


# Ranks 1 and 2 are on the far host. Once all have gone some steps rank 0 cuts the cable, and has
# the launcher's connection end as ssh does when nothing comes; what runs on the far host hears of
# neither. The next connection finds the cable mended.
CUT_OFF = """
import pathlib, tempfile
RANK = '''
import os, subprocess, numpy as np, gradring as gr

rank, is_new = int(os.environ["GRADRING_RANK"]), "GRADRING_NEWCOMER" in os.environ
if is_new:
    states = ["/proc/" + pid + "/stat" for pid in open("old").read().split()]
    old = [open(state).read() for state in states if os.path.exists(state)]
    print("old", *(stat for stat in old if ") Z " not in stat), flush=True)
elif rank:
    with open("old", "a") as file: print(os.getpid(), file=file)
comm, shared, step = gr.init(), None, 0
while step < 20:
    try:
        if comm is not shared:
            step, shared = int(comm.broadcast(np.array([step]))[0]), comm
        new = comm.all_reduce(np.full(50_000, is_new, float))[0]
        if rank == 0 and step == 5 and new == 0:
            subprocess.run(["ip", "link", "set", "near", "down"], check=True)
            os.kill(int(open("connection").read()), 9)
        step += step < 8 or new == 2
        if step < 20: comm = comm.grow()
    except gr.PeerLost:
        comm = comm.shrink()
print("end", rank, comm.world_size, flush=True)
'''

SSH = f'''#!/bin/sh
host=$1; shift
[ $host = 10.8.8.1 ] && exec sh -c "$*"
ip link set near up
mkfifo in-$$ out-$$
{" ".join(far)} setsid sh -c "$*" 0<>in-$$ 1<>out-$$ &
cat out-$$ &
echo $! > connection
exec cat > in-$$
'''

with tempfile.TemporaryDirectory() as folder:
    for name, text in (
        ("ssh", SSH), ("rank.py", RANK), ("hosts", "10.8.8.1\\n10.8.8.2 slots=2\\n")
    ):
        (pathlib.Path(folder) / name).write_text(text)
    (pathlib.Path(folder) / "ssh").chmod(0o755)
    options = ["--hosts", "hosts", "--ssh", "./ssh", "--restart-ranks", "rank.py"]
    run = subprocess.run(
        [sys.executable, "-m", "gradring", "run", *options],
        cwd=folder, capture_output=True, text=True, timeout=40,
    )
print(json.dumps([run.returncode, sorted(run.stdout.splitlines()), run.stderr]))
"""


def test_a_host_that_was_cut_off_comes_back_with_new_ranks_alone() -> None:
    code, lines, err = on_cabled_hosts(CUT_OFF, GRADRING_HEARTBEAT_TIMEOUT="1")
    assert code == 0, err
    assert lines == ["[0] end 0 3", "[1] end 1 3", "[1] old", "[2] end 2 3", "[2] old"]
    assert "gradring: lost 10.8.8.2 (ranks 1-2): exit code 0; starting them again in 0.1 s" in err
    assert err.count(" is in the job again, as rank ") == 2
