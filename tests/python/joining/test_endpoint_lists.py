"""TF_CONFIG and Paddle's variables: rank, hosts and meeting point are in the lists of addresses."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from typing import Any

import pytest

from gradring.errors import InvalidArgument
from gradring.launchers.job_secret import needs_secret
from gradring.launchers.roles import Role, discover

HOSTS = ["a:2222", "b:2222", "b:2223", "c:1"]
PADDLE = {
    "PADDLE_TRAINER_ID": "2",
    "PADDLE_TRAINERS_NUM": "4",
    "PADDLE_TRAINER_ENDPOINTS": ",".join(HOSTS),
}


def tf_config(cluster: Any, kind: str, index: Any) -> dict[str, str]:
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def role_in(environ: dict[str, str]) -> Role:
    role = discover(environ)
    assert role is not None
    return role


def place(role: Role) -> tuple[int, int, int | None, int | None]:
    return role.rank, role.world_size, role.local_rank, role.local_world_size


def test_tf_config_tells_rank_hosts_and_where_to_meet() -> None:
    role = role_in(tf_config({"worker": HOSTS, "ps": ["d:1"]}, "worker", 2))
    assert place(role) == (2, 4, 1, 2)
    assert (role.source, role.rendezvous) == ("TF_CONFIG", "a:2223")
    assert role.variables == ("TF_CONFIG",)
    assert needs_secret(role)


def test_the_chief_is_rank_0_and_workers_follow() -> None:
    cluster = {"worker": HOSTS[1:], "chief": HOSTS[:1]}
    assert place(role_in(tf_config(cluster, "chief", 0))) == (0, 4, 0, 1)
    assert place(role_in(tf_config(cluster, "worker", 2))) == (3, 4, 0, 1)
    assert role_in(tf_config(cluster, "worker", 2)).rendezvous == "a:2223"


def test_a_tf_config_without_a_cluster_is_a_world_of_one_as_for_tensorflow() -> None:
    for text in ("{}", '{"cluster": {}}', '{"task": {"type": "worker", "index": 0}}', ""):
        assert discover({"TF_CONFIG": text}) is None
    assert place(role_in(tf_config({"worker": ["a:1"]}, "worker", 0))) == (0, 1, 0, 1)


def test_paddles_variables_tell_rank_hosts_and_where_to_meet() -> None:
    role = role_in(PADDLE)
    assert place(role) == (2, 4, 1, 2)
    assert (role.source, role.rendezvous) == ("Paddle", "a:2223")
    assert set(role.variables) == set(PADDLE)
    elsewhere = role_in({**PADDLE, "GRADRING_RENDEZVOUS": "x:9"})
    assert (elsewhere.source, elsewhere.rendezvous) == ("Paddle", "x:9")
    alone = {"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "1"}
    assert place(role_in(alone))[:2] == (0, 1)


def test_ranks_of_one_host_meet_on_loopback_at_a_port_that_is_nobodys() -> None:
    hosts = ["h:6170", "h:6171", "h:6172", "other:6173"]
    spread = tf_config({"worker": hosts}, "worker", 1)
    assert role_in(spread).rendezvous == "h:6173"
    here = {**PADDLE, "PADDLE_TRAINERS_NUM": "3", "PADDLE_TRAINER_ENDPOINTS": ", ".join(hosts[:3])}
    role = role_in(here)
    assert (place(role), role.rendezvous) == ((2, 3, 2, 3), "127.0.0.1:6173")
    last = {**here, "PADDLE_TRAINER_ENDPOINTS": "h:65534,h:65535,h:65533"}
    assert role_in(last).rendezvous_port == 65532


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TF_CONFIG": "{worker"}, "TF_CONFIG is not JSON"),
        ({"TF_CONFIG": "[1]"}, "TF_CONFIG: cluster is no object"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": 3}'}, "task is no object"),
        (tf_config({"worker": {"0": "a:1"}}, "worker", 0), "cluster.worker is not a list"),
        (tf_config({"worker": [1]}, "worker", 0), "cluster.worker is not a list"),
        (tf_config({"worker": HOSTS}, "worker", 4), "task.index=4 is none of cluster.worker, wh"),
        (tf_config({"worker": HOSTS}, "worker", "1"), "task.index='1' is none"),
        (tf_config({"worker": HOSTS}, "chief", 0), "cluster.chief, which has 0"),
        (tf_config({"worker": HOSTS, "ps": ["d:1"]}, "ps", 0), "'ps' is no rank, .*gradring serve"),
        (tf_config({"worker": ["a:1", "b"]}, "worker", 0), "TF_CONFIG='b' is not host:port"),
        ({**PADDLE, "PADDLE_TRAINER_ID": "4"}, "PADDLE_TRAINER_ID=4 is not below"),
        ({**PADDLE, "PADDLE_TRAINERS_NUM": "3"}, "has 4 addresses, PADDLE_TRAINERS_NUM=3"),
        ({**PADDLE, "TRAINING_ROLE": "PSERVER"}, "is no rank, .*gradring serve"),
        ({**PADDLE, "PADDLE_TRAINER_ENDPOINTS": ""}, "PADDLE_TRAINER_ENDPOINTS missing"),
        ({"PADDLE_TRAINER_ID": "0"}, "PADDLE_TRAINERS_NUM, PADDLE_TRAINER_ENDPOINTS missing"),
    ],
)
def test_lists_that_make_no_sense_are_refused_by_name(environ: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        discover(environ)


def test_workers_of_a_tf_config_train_together() -> None:
    # Bound while rank 0 listens there: nobody else is given the number.
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    meeting = kept.getsockname()[1]
    cluster = {"worker": [f"127.0.0.1:{meeting - 1}", f"127.0.0.1:{meeting - 2}"]}
    script = "import gradring as gr; c = gr.init(); c.barrier(); print(c.rank, c.world_size)"
    shared = {**os.environ, "GRADRING_SECRET": secrets.token_hex(32)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script], env={**shared, **tf_config(cluster, "worker", rank)},
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    with kept:
        assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["0 2\n", "1 2\n"]
