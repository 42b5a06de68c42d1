"""A job grows from one host to two, and goes on on the other when the first loses its leader."""

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
