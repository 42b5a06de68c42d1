"""Roles: every launcher's variables are understood; half a set is an error that names the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from gradring.errors import InvalidArgument
from gradring.launchers.roles import discover
from gradring.launchers.slurm import expand_hostlist, task_counts
from launcher_variables import BY_HAND, OPEN_MPI, OWN, PADDLE, PMI, SLURM, TF_CONFIG, TORCHRUN


def numbers(environ: dict[str, str]) -> tuple[object, ...]:
    role = discover(environ)
    assert role is not None
    return role.rank, role.world_size, role.local_rank, role.local_world_size


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(InvalidArgument) as refused:
        discover(environ)
    return str(refused.value)


def test_no_launcher_at_all_is_a_world_of_one() -> None:
    assert discover({"PATH": "/bin", "RANK": ""}) is None


def test_our_own_variables() -> None:
    role = discover(OWN)
    assert role is not None
    assert numbers(OWN) == (1, 4, 1, 2)
    assert (role.source, role.rendezvous_host, role.rendezvous_port) == (
        "gradring",
        "fd00::1",
        4000,
    )
    assert role.rendezvous == "[fd00::1]:4000"
    assert set(role.variables) == set(OWN)


def test_the_secret_is_not_in_a_roles_text() -> None:
    role = discover(OWN)
    assert role is not None
    assert role.secret == "s" * 64
    assert "sss" not in repr(role)


def test_rank_0_takes_the_launchers_listening_socket_and_no_other_rank_may() -> None:
    role = discover({**OWN, "GRADRING_RANK": "0", "GRADRING_LISTEN_FD": "7"})
    assert role is not None
    assert role.listen_fd == 7
    assert "only rank 0" in refusal({**OWN, "GRADRING_LISTEN_FD": "7"})


def test_variables_set_by_hand_meet_at_master_port_itself() -> None:
    role = discover(BY_HAND)
    assert role is not None
    assert (role.rendezvous, role.source) == ("node1:29500", "torch variables")
    assert numbers(BY_HAND) == (2, 3, None, None)  # Nobody said who shares a host.


def test_by_hand_on_loopback_every_rank_is_local() -> None:
    assert numbers({**BY_HAND, "MASTER_ADDR": "localhost"}) == (2, 3, 2, 3)


def test_under_torchrun_we_meet_next_to_its_own_store() -> None:
    role = discover(TORCHRUN)
    assert role is not None
    assert (role.rendezvous, role.source, role.job) == ("node1:29501", "torchrun", "none")
    last = discover({**TORCHRUN, "MASTER_PORT": "65535"})
    assert last is not None
    assert last.rendezvous_port == 65534


def test_torchrun_on_one_host_meets_on_loopback() -> None:
    role = discover({**TORCHRUN, "LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": "2"})
    assert role is not None
    assert role.rendezvous == "127.0.0.1:29501"


def test_our_rendezvous_variable_wins_over_the_launchers() -> None:
    for environ in (TORCHRUN, BY_HAND, OPEN_MPI, PMI, SLURM):
        role = discover({**environ, "GRADRING_RENDEZVOUS": "10.0.0.1:99"})
        assert role is not None
        assert role.rendezvous == "10.0.0.1:99"


def test_open_mpi_on_one_host_needs_nothing_more() -> None:
    role = discover(OPEN_MPI)
    other_job = discover({**OPEN_MPI, "PMIX_NAMESPACE": "2013724674"})
    assert role is not None
    assert other_job is not None
    assert numbers(OPEN_MPI) == (1, 2, 1, 2)
    assert role.rendezvous_host == "127.0.0.1"
    assert 20000 <= role.rendezvous_port < 30000
    assert role.rendezvous_port != other_job.rendezvous_port


def test_open_mpi_on_several_hosts_says_what_it_lacks() -> None:
    spread = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"}
    assert "GRADRING_RENDEZVOUS=HOST:PORT" in refusal(spread)
    role = discover({**spread, "MASTER_ADDR": "node1", "MASTER_PORT": "5000"})
    assert role is not None
    assert role.rendezvous == "node1:5000"  # Nobody else listens there: no torchrun, no neighbour.
    assert "MASTER_PORT missing" in refusal({**spread, "MASTER_ADDR": "node1"})


def test_mpi_inside_a_slurm_job_meets_on_its_first_node() -> None:
    # The batch script's environment, and that of mpirun's daemons: srun started those, on the other
    # nodes.
    job = {name: SLURM[name] for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST")}
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[09-10]", "SLURM_PROCID": "0"}
    spread = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4", **job}
    roles = [discover(spread), discover({**spread, **step})]
    assert [role.source for role in roles if role] == ["Open MPI"] * 2
    first, other = (role.rendezvous for role in roles if role)
    assert first == other
    assert first.startswith("node08:2")
    another = discover({**spread, "PMIX_NAMESPACE": "prterun-1@2"})
    assert another is not None
    assert another.rendezvous != first  # A second mpirun of the job.


def test_slurm_meets_on_the_first_node_at_a_port_of_its_job() -> None:
    role = discover(SLURM)
    assert role is not None
    assert numbers(SLURM) == (3, 5, 1, 2)
    assert (role.source, role.rendezvous) == ("Slurm", "node08:24567")
    second_step = discover({**SLURM, "SLURM_STEP_ID": "1"})
    assert second_step is not None
    assert second_step.rendezvous_port == 25564


def test_a_meeting_point_that_stands_for_a_job_is_in_the_range_of_ports() -> None:
    spread = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"}
    inside = {**spread, "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "node[1-2]"}
    for environ in (SLURM, OPEN_MPI, inside):
        role = discover({**environ, "GRADRING_PORTS": "41000-41002"})
        assert role is not None
        assert 41000 <= role.rendezvous_port <= 41002
        assert "GRADRING_PORTS" in role.variables
        asked = discover({**environ, "GRADRING_PORTS": "41000-41002"}, ports="5-5")
        assert asked is not None
        assert asked.rendezvous_port == 5
    assert "GRADRING_PORTS='5' is no range" in refusal({**SLURM, "GRADRING_PORTS": "5"})


def test_a_slurm_batch_script_is_no_rank_but_its_steps_are() -> None:
    script = {**SLURM, "ENVIRONMENT": "BATCH", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    del script["SLURM_STEP_ID"]
    assert discover(script) is None
    assert discover({**script, "SLURM_STEP_ID": "0"}) is not None
    # Shells inside salloc: as it always was, and where Slurm runs them on the first node.
    assert discover({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}) is None
    shell = {**script, "ENVIRONMENT": "INTERACTIVE", "SLURM_STEP_ID": "4294967290"}
    assert discover(shell) is None


def test_srun_that_speaks_pmi_is_slurm_and_mpiexec_inside_a_job_is_not() -> None:
    tasks = {**SLURM, "PMI_RANK": SLURM["SLURM_PROCID"], "PMI_SIZE": SLURM["SLURM_NTASKS"]}
    role, plain = discover(tasks), discover(SLURM)
    assert role is not None
    assert plain is not None
    assert (role.source, role.rendezvous) == ("Slurm", plain.rendezvous)
    assert (role.local_rank, role.local_world_size) == (plain.local_rank, plain.local_world_size)
    # Of MPICH's: srun started the proxies only.
    for more in ({"PMI_RANK": "4"}, {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}):
        hydra = discover({**tasks, **more})
        assert hydra is not None
        assert hydra.source == "PMI"


def test_precedence_is_ours_torchrun_open_mpi_pmi_slurm_tf_config_paddle() -> None:
    launchers = (OWN, TORCHRUN, OPEN_MPI, PMI, SLURM, TF_CONFIG, PADDLE)
    everything = {name: value for launcher in launchers for name, value in launcher.items()}
    found = []
    for launcher in launchers:
        role = discover(everything)
        assert role is not None
        found.append(role.source)
        everything = {name: everything[name] for name in everything if name not in launcher}
    assert found == ["gradring", "torchrun", "Open MPI", "PMI", "Slurm", "TF_CONFIG", "Paddle"]
    assert discover(everything) is None


def test_arguments_win_over_variables() -> None:
    role = discover(TORCHRUN, rank=0, world_size=2, rendezvous="127.0.0.1:1234")
    assert role is not None
    assert (role.source, role.rank, role.rendezvous) == ("gradring", 0, "127.0.0.1:1234")
    with pytest.raises(InvalidArgument, match="GRADRING_WORLD_SIZE, GRADRING_RENDEZVOUS missing"):
        discover({}, rank=0)


LAUNCHED = {**OWN, "GRADRING_RANK": "0", "GRADRING_LISTEN_FD": "7"}


@pytest.mark.parametrize("environ", [LAUNCHED, OWN])
def test_arguments_make_another_role_than_the_launcher_gave(environ: dict[str, str]) -> None:
    alone = discover(environ, rank=0, world_size=1)
    assert alone is not None
    assert (alone.rank, alone.world_size, alone.local_rank, alone.local_world_size) == (0, 1, 0, 1)
    smaller = discover(environ, rank=2, world_size=3, rendezvous="[fd00::1]:4001")
    assert smaller is not None
    assert (smaller.rank, smaller.world_size, smaller.listen_fd) == (2, 3, None)
    assert (smaller.local_rank, smaller.local_world_size) == (None, None)


def test_the_launchers_socket_is_for_its_own_meeting_point() -> None:
    elsewhere = discover(LAUNCHED, rank=0, world_size=4, rendezvous="[fd00::1]:4001")
    same = discover(LAUNCHED, rank=0, world_size=4, rendezvous=LAUNCHED["GRADRING_RENDEZVOUS"])
    only_smaller = discover(LAUNCHED, rank=0, world_size=2)
    assert [role.listen_fd for role in (elsewhere, same, only_smaller) if role] == [None, 7, 7]
    assert elsewhere is not None
    assert (elsewhere.local_rank, elsewhere.local_world_size) == (1, 2)  # Still these ranks.


@pytest.mark.parametrize(
    ("environ", "size"),
    [(OWN, "GRADRING_WORLD_SIZE"), (BY_HAND, "WORLD_SIZE"), (SLURM, "SLURM_NTASKS")],
    ids=["own", "by hand", "slurm"],
)
def test_a_world_of_one_needs_no_meeting_point(environ: dict[str, str], size: str) -> None:
    rank = size.replace("WORLD_SIZE", "RANK").replace("NTASKS", "PROCID")
    role = discover({size: "1", rank: "0"})
    assert role is not None
    assert (role.rank, role.world_size, role.local_world_size) == (0, 1, 1)


@pytest.mark.parametrize("environ", [OWN, BY_HAND, OPEN_MPI, PMI, SLURM])
def test_each_missing_variable_is_named_beside_those_that_are_set(environ: dict[str, str]) -> None:
    optional = ("LOCAL", "SECRET", "NODEID", "STEP", "PMIX")
    needed = [name for name in environ if not any(part in name for part in optional)]
    assert len(needed) >= 2
    for missing in needed:
        partial = {name: value for name, value in environ.items() if name != missing}
        if missing == "SLURM_PROCID":
            assert discover(partial) is None  # Without it, srun did not start this process.
            continue
        text = refusal(partial)
        assert f"{missing} missing" in text
        assert all(f"{name}={environ[name]}" in text for name in needed if name != missing)


def test_a_lonely_variable_is_part_of_a_set_too() -> None:
    assert "RANK, WORLD_SIZE, MASTER_PORT missing" in refusal({"MASTER_ADDR": "node1"})
    assert "GRADRING_RANK, GRADRING_WORLD_SIZE missing" in refusal({"GRADRING_RENDEZVOUS": "a:1"})


@pytest.mark.parametrize(
    "name", ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "GRADRING_LOCAL_RANK", "GRADRING_LISTEN_FD"]
)
def test_a_variable_that_makes_a_part_of_a_set_by_itself_is_named(name: str) -> None:
    assert f"incomplete: {name}=0 set, " in refusal({name: "0"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "two"}, "RANK='two' is not a whole number"),
        ({"RANK": "-1"}, "RANK='-1' is not a whole number"),
        ({"RANK": "3"}, "RANK=3 is not below WORLD_SIZE=3"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0: a world has at least one rank"),
        ({"WORLD_SIZE": "2.5"}, "WORLD_SIZE='2.5' is not a whole number"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=2 is not below"),
        ({"LOCAL_WORLD_SIZE": "4"}, "LOCAL_WORLD_SIZE=4 does not fit WORLD_SIZE=3"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT='70000': a port is a number from 1 to 65535"),
        ({"GRADRING_RENDEZVOUS": "fd00::1:80"}, "IPv6 goes in brackets"),
        ({"GRADRING_RENDEZVOUS": "node1"}, "GRADRING_RENDEZVOUS='node1' is not host:port"),
        ({"GRADRING_RENDEZVOUS": "node1:0"}, "GRADRING_RENDEZVOUS='node1:0': a port is a number"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(change: dict[str, str], words: str) -> None:
    assert words in refusal({**BY_HAND, **change})


def test_slurms_short_forms() -> None:
    assert expand_hostlist("r[1-2]n[08-10],x,n[3,7-8]-ib") == (
        ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10", "x", "n3-ib", "n7-ib", "n8-ib"]
    )
    assert task_counts("2(x3),1") == [2, 2, 2, 1]
    for wrong in ("n[1-", "n]1[", "n[[1]]", "n[a-b]", "n[5-1]", "n[0-99999]m[0-99999]"):
        with pytest.raises(InvalidArgument):
            expand_hostlist(wrong)


# One write: mpirun does not keep lines of several ranks apart.
PRINT_ROLE = (
    "import os; from gradring.launchers.roles import discover; r = discover(os.environ); "
    "text = [r.source, r.rank, r.world_size, r.local_rank, r.local_world_size, r.rendezvous]; "
    "os.write(1, (' '.join(map(str, text)) + '\\n').encode())"
)


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("Open MPI", ["mpirun.openmpi", "--oversubscribe", "-n", "3"]),
        ("PMI", ["mpirun.mpich", "-n", "3"]),
    ],
)
def test_real_mpi_ranks_agree_on_where_to_meet(source: str, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # A shell between the launcher and the rank must not change the answer.
    script = [*command, "sh", "-c", '"$0" -c "$1"; true', sys.executable, PRINT_ROLE]
    environ = {**os.environ, **as_root}
    done = subprocess.run(
        script, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    meeting = {line.rsplit(" ", 1)[1] for line in lines}
    assert [line.rsplit(" ", 1)[0] for line in lines] == [
        f"{source} {rank} 3 {rank} 3" for rank in range(3)
    ]
    assert len(meeting) == 1
    assert meeting.pop().startswith("127.0.0.1:2")
