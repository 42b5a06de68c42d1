"""`distributed`: an optimizer over NumPy arrays whose mode is one argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradring.collectives.communicator import Communicator
from gradring.collectives.joining import require_ranks
from gradring.errors import InvalidArgument
from gradring.modes.asynchronous import AsyncOptimizer
from gradring.modes.bounded import BoundedOptimizer
from gradring.modes.contracts import Async, BoundedStaleness, Geo, Hybrid, Mode, Sync
from gradring.modes.geo.optimizer import GeoOptimizer
from gradring.modes.hybrid import HybridOptimizer
from gradring.modes.rounds import RoundOptimizer
from gradring.modes.stepping.names import require_name
from gradring.modes.stepping.optimizer import ModeOptimizer
from gradring.modes.stores.store import Array
from gradring.optim.rules import require_rule


def distributed(
    params: Iterable[Array],
    rule: Any,
    mode: Mode | None = None,
    *,
    ps: Any = None,
    comm: Communicator | None = None,
    name: str = "model",
    timeout: float | None = None,
) -> ModeOptimizer:
    """Make an optimizer that trains NumPy arrays on all workers; call it on every worker.

    In modes whose workers begin together that is a collective call of the ranks.

    Whatever the mode, the rest of a script is the same: ``table = optimizer.sparse_table(...)``,
    ``table.pull(ids)``, ``optimizer.step(grads, weight, rows)``, ``optimizer.flush()`` at the end
    of an epoch, ``optimizer.close()`` in the end.

    Args:
        params: Float32 arrays of the same shapes on every worker; written in place. Where servers
            hold them no two may share memory.
        rule: Update rule of `gradring.optim`, or a sequence with one for each parameter.
        mode: `Sync`, the default, `BoundedStaleness`, `Async`, `Geo` or `Hybrid`.
        ps: What `gradring.ps.connect` returned; ``None`` connects where servers are needed.
        comm: The ranks, which are the workers; ``None`` is the communicator that `init` made, or
            makes now in modes whose workers begin together. In the others (`Async`,
            `BoundedStaleness`, `Geo`) the launcher's variables say who this worker is.
        name: Of the model: the first part of its tables' names. Two optimizers that are open at a
            time have different ones.
        timeout: Seconds that a step may wait for other workers; ``None``: `GRADRING_TIMEOUT`, or
            30.

    Raises:
        InvalidArgument: A parameter cannot be trained, the rule or the mode is none, the timeout
            makes no sense, an open optimizer has the name, or servers count the ranks of ``comm``
            otherwise (docs/modes.md, "Ranks and workers").
        Mismatch: Servers hold another number of dense parameters under this name, or other shapes;
            nothing was written.
        TimedOut: Others did not come.
    """
    require_ranks(comm)
    require_name(name)
    params = list(params)
    if params and rule is None:
        require_rule(rule)
    mode = Sync() if mode is None else mode
    if isinstance(mode, Sync) and mode.via == "all_reduce":
        mode = Hybrid(dense=mode, sparse=Sync(via="ps"))
    if isinstance(mode, Hybrid):
        return HybridOptimizer(params, rule, mode, ps=ps, comm=comm, name=name, timeout=timeout)
    return over_servers(mode, params, rule, ps, name=name, comm=comm, timeout=timeout)


def over_servers(
    mode: Mode, params: Iterable[Array], rule: Any, ps: Any, **options: Any
) -> ModeOptimizer:
    """Make the optimizer of a mode that goes through servers.

    Args:
        mode: Any but `Hybrid` and ``Sync()``.
        params: As in `distributed`.
        rule: As in `distributed`.
        ps: As in `distributed`.
        **options: Of `ModeOptimizer`.

    Raises:
        InvalidArgument: The mode is none of these.
    """
    match mode:
        case Sync(via="ps"):
            return RoundOptimizer(params, rule, ps, **options)
        case BoundedStaleness(staleness):
            return BoundedOptimizer(params, rule, ps, staleness=staleness, **options)
        case Async(queue):
            return AsyncOptimizer(params, rule, ps, queue=queue, **options)
        case Geo(k_steps, outer, rare_every):
            return GeoOptimizer(
                params, rule, ps, k_steps=k_steps, outer=outer, rare_every=rare_every, **options
            )
    raise InvalidArgument(
        f"mode {mode!r} is none of gr.Sync(), gr.Sync(via='ps'), gr.BoundedStaleness(s), "
        "gr.Async(), gr.Geo(k) and gr.Hybrid(dense, sparse)"
    )
