"""Metrics for Prometheus: what a worker or a server does, read when it is asked (docs/metrics.md).

Needs prometheus-client: ``pip install 'gradring[metrics]'``. Nothing is counted for it that would
not be otherwise but the bytes of TCP connections, beside the system calls that move them.
"""

from gradring.prometheus.endpoint import Endpoint, register, serve

__all__ = ["Endpoint", "register", "serve"]
