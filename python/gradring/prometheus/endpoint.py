"""Where Prometheus asks: a registry that knows our collector, and an HTTP server over it."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from gradring.core_arguments import plain_text, whole_number
from gradring.errors import InvalidArgument
from gradring.settings import port_range
from gradring.settings.address import format_address, own_loopback, parse_address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from gradring.prometheus.web_server import WebServer

_ADVICE = {
    errno.EADDRINUSE: "; another job may answer there: name another port (0: a free one)",
    errno.EADDRNOTAVAIL: "; name an address of this host",
}

_lock = threading.Lock()
_job_lock = threading.Lock()
_registered: weakref.WeakSet[CollectorRegistry] = weakref.WeakSet()
_of_job: list[Endpoint] = []  # That GRADRING_METRICS has started; one at the most.
_serving: set[Endpoint] = set()


class Endpoint:
    """A thread that answers scrapes; also a context manager that closes at the end of the block.

    Attributes:
        address: Where, as host:port.
        url: What to scrape.
    """

    def __init__(self, address: str, server: WebServer) -> None:
        """Begin to answer at what listens already."""
        self.address = address
        self.url = f"http://{address}/metrics"
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, name="gradring metrics", daemon=True
        )
        self._thread.start()
        _serving.add(self)

    def close(self) -> None:
        """Answer no more; may be called again, and in a forked child, which never answers."""
        if self not in _serving:
            return
        _serving.discard(self)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def disown(self) -> None:
        """Give the port back in a forked child, which has none of the threads."""
        self._server.socket.close()

    def __enter__(self) -> Endpoint:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def register(registry: CollectorRegistry | None = None) -> None:
    """Have a registry of prometheus-client tell what gradring does; asked again, it does already.

    Args:
        registry: ``None``: the one that prometheus-client has by default.

    Raises:
        InvalidArgument: prometheus-client is missing.
    """
    client = require_client()
    chosen = client.REGISTRY if registry is None else registry
    from gradring.prometheus.collector import SourceCollector

    with _lock:
        if chosen not in _registered:
            chosen.register(SourceCollector())
            _registered.add(chosen)


def serve(
    port: int = 0,
    *,
    host: str | None = None,
    ports: str | None = None,
    registry: CollectorRegistry | None = None,
) -> Endpoint:
    """Answer Prometheus' scrapes from a thread, until it is closed or the program ends.

    Who reaches the port reads everything: there is no secret and no encryption.

    Args:
        port: To listen at; 0: a free one.
        host: An address of this host; ``None``: loopback; ``0.0.0.0`` or ``::``: all of them.
        ports: ``FIRST-LAST``: the range that a free one is taken from; ``None``: that of
            `GRADRING_PORTS`, or any.
        registry: As for `register`, which is done as well.

    Raises:
        InvalidArgument: prometheus-client is missing, or this cannot be listened at; says why.
    """
    host = own_loopback() if host is None else plain_text(host, "host")
    port = whole_number(port, "port", 0, 65535)
    if ports is not None:
        ports = port_range.checked(ports, "ports")
    elif text := os.environ.get("GRADRING_PORTS"):
        ports = port_range.checked(text, "GRADRING_PORTS")
    client = require_client()
    chosen = client.REGISTRY if registry is None else registry
    register(chosen)
    from gradring.prometheus.web_server import WebServer

    app = client.make_wsgi_app(chosen)

    def listen(port: int) -> WebServer:
        return WebServer(host, port, app)

    try:
        if port == 0:
            server = port_range.listen_at_free_port(host, ports, listen)
        else:
            server = listen(port)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "")
        raise InvalidArgument(
            f"cannot serve metrics at {format_address(host, port)}: "
            f"{error.strerror or error}{advice}"
        ) from error
    return Endpoint(format_address(host, server.server_port), server)


def serve_job(address: str, rank: int, ports: str | None) -> None:
    """Serve what a job's ranks are told to by GRADRING_METRICS: once a process, whoever asks first.

    Args:
        address: host:port of rank 0; rank r has the r-th port behind it. Port 0: a free one.
        rank: Of this process.
        ports: As for `serve`.

    Raises:
        InvalidArgument: As `serve`.
    """
    host, port = parse_address(address, "GRADRING_METRICS", any_port=True)
    if port + rank > 65535:
        raise InvalidArgument(
            f"GRADRING_METRICS={address}: rank {rank} would serve at port {port + rank}, which is "
            "none; name a lower one for rank 0"
        )
    with _job_lock:
        if not _of_job:
            _of_job.append(serve(port + rank if port else 0, host=host, ports=ports))


def serve_newcomer(address: str, ports: str | None) -> None:
    """Serve as `serve_job` does, at the first free port from that of rank 0 on.

    Where a rank of this host was lost that is the lost one's, which is scraped already: the others
    keep theirs, whatever their ranks are by now.

    Args:
        address: As for `serve_job`.
        ports: As for `serve`.

    Raises:
        InvalidArgument: prometheus-client is missing, or all ports are taken; says why.
    """
    host, port = parse_address(address, "GRADRING_METRICS", any_port=True)
    with _job_lock:
        while not _of_job:
            try:
                _of_job.append(serve(port, host=host, ports=ports))
            except InvalidArgument as refused:
                is_taken = getattr(refused.__cause__, "errno", None) == errno.EADDRINUSE
                if not is_taken or port in (0, 65535):
                    raise
                port += 1


def require_client() -> Any:
    """Return prometheus-client.

    Raises:
        InvalidArgument: It is missing; says which extra has it.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise InvalidArgument(
            "metrics need prometheus-client: pip install 'gradring[metrics]'"
        ) from error
    return prometheus_client


def _disown() -> None:
    global _lock, _job_lock
    _lock, _job_lock = threading.Lock(), threading.Lock()
    for served in _serving:
        served.disown()
    _serving.clear()
    _of_job.clear()


os.register_at_fork(after_in_child=_disown)
