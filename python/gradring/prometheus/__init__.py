"""Metrics for Prometheus: what a worker or a server does, read when it is asked (docs/metrics.md).

Needs prometheus-client: ``pip install 'gradring[metrics]'``; `scalars` does not. Nothing is counted
for it that would not be otherwise but the bytes of TCP connections, beside the system calls that
move them.
"""

from gradring.prometheus.endpoint import Endpoint, register, serve
from gradring.prometheus.scalars import scalars

__all__ = ["Endpoint", "register", "scalars", "serve"]
