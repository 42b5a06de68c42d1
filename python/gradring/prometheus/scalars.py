"""What a scrape would be told, as plain numbers: for TensorBoard, or whatever logs by step.

Called by the program, on its own thread. Needs no prometheus-client.
"""

from __future__ import annotations

from gradring.prometheus import sources
from gradring.prometheus.sources import Buckets


def scalars() -> dict[str, float]:
    """Return what docs/metrics.md lists, as of now: by metric, and its labels behind slashes.

    ``gradring_sent_bytes_total/tcp`` is the metric with the label ``tcp``. A histogram is the mean
    of all that it has counted, with ``_mean`` behind its name, and is not there before the first.
    Waits at most 2 s for each source; one that does not answer has 0 as its ``gradring_up``.

    Returns:
        Values in the metric's unit, each a float.

    Example:
        >>> import numpy as np, gradring as gr
        >>> with gr.init() as comm:
        ...     _ = comm.all_reduce(np.ones(4))
        ...     told = gr.prometheus.scalars()
        >>> told["gradring_up/communicators"]
        1.0
    """
    found: dict[str, float] = {}
    for source in sources.everybody():
        said = source.readings(sources.LONGEST_SECONDS)
        found[f"gradring_up/{source.name}"] = 0.0 if said is None else 1.0
        for metric, labels, value in said or ():
            if not isinstance(value, Buckets):
                found["/".join([metric, *labels])] = float(value)
            elif (count := value.counts[-1][1]) > 0:
                found["/".join([f"{metric}_mean", *labels])] = value.total / count
    return found
