"""The server and the workers of TensorFlow's ParameterServerStrategy, for the programs here.

They are processes that wait for what the coordinator, the calling process, schedules.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def serve(role: str, index: int, cluster: dict[str, list[str]], threads: int) -> None:
    """Be a worker or a parameter server until killed."""
    import tensorflow as tf

    _set_task(cluster, role, index)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    config = tf.compat.v1.ConfigProto()
    config.intra_op_parallelism_threads = threads
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=role, task_index=index, protocol="grpc", config=config
    ).join()


@contextlib.contextmanager
def started(workers: int, threads: int) -> Iterator[tuple[Any, Any]]:
    """Start the processes; gives the strategy and the coordinator."""
    ports = _free_ports(workers + 2)
    cluster = {"worker": ports[1:-1], "ps": ports[:1], "chief": ports[-1:]}
    context = multiprocessing.get_context("spawn")
    running = []
    for role, count in (("ps", 1), ("worker", workers)):
        for index in range(count):
            arguments = (role, index, cluster, threads)
            running.append(context.Process(target=serve, args=arguments, daemon=True))
            running[-1].start()
    try:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        _set_task(cluster, "chief", 0)
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        yield strategy, tf.distribute.coordinator.ClusterCoordinator(strategy)
    finally:
        for process in running:
            process.kill()


def _set_task(cluster: dict[str, list[str]], role: str, index: int) -> None:
    task = {"cluster": cluster, "task": {"type": role, "index": index}}
    os.environ["TF_CONFIG"] = json.dumps(task)


def _free_ports(count: int) -> list[str]:
    """Return addresses that nobody listens on just now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    for probe in probes:
        probe.close()
    return addresses
