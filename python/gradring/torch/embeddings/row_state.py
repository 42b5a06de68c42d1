"""What `state_dict()` of a `torch.optim` optimizer holds of embeddings: the state of rows in GEO.

There each worker trains rows of its own, so their state is neither torch's nor the servers'. It is
kept as tensors, for `torch.load` takes nothing else without running code. Used by the optimizers
that `distributed` makes, on their thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from gradring.errors import InvalidArgument
from gradring.modes.geo.optimizer import GeoOptimizer
from gradring.torch.embeddings.rows import Rows

KEY = "gradring_rows"


def with_rows(state_dict: dict[str, Any], rows: Rows | None) -> dict[str, Any]:
    """Return the state with that of rows beside it, where this worker trains some.

    Args:
        state_dict: Torch's own.
        rows: The model's embeddings.
    """
    driver = _trainer(rows)
    if driver is None:
        return state_dict
    tables = driver.state_dict()["rows"]
    return {**state_dict, KEY: {name: _as_tensors(state) for name, state in tables.items()}}


def load_with_rows(
    optimizer: Any, load: Callable[[dict[str, Any]], None], state_dict: dict[str, Any]
) -> None:
    """Go on from what `with_rows` returned; after an error all is as it was before.

    Args:
        optimizer: A `torch.optim` optimizer; its ``rows`` are loaded too.
        load: Loads torch's part, into new dicts; a class behind ours may have one of its own.
        state_dict: What was saved.

    Raises:
        InvalidArgument: As `load_rows`, and so for TimedOut; and whatever torch raises.
    """
    attributes = vars(optimizer)
    before = {name: attributes[name] for name in ("state", "param_groups")}
    try:
        load(state_dict)
        load_rows(optimizer.rows, state_dict)
    except BaseException:
        attributes.update(before)
        raise


def load_rows(rows: Rows | None, state_dict: Mapping[str, Any]) -> None:
    """Go on from the rows' part of what `with_rows` returned.

    Raises:
        InvalidArgument: It has none and this worker trains rows, or the other way round; or it is
            of other tables or rules.
        TimedOut: Servers did not bring rows that are new here.
    """
    driver, saved = _trainer(rows), state_dict.get(KEY)
    if driver is None:
        if saved is not None:
            raise InvalidArgument(
                "load_state_dict: the state has that of rows which a worker trained in GEO "
                f"({', '.join(map(str, saved))}), and here no worker does; leave out its {KEY!r} "
                "if they are to begin without"
            )
        return
    own = driver.state_dict()
    if saved is None:
        raise InvalidArgument(
            f"load_state_dict: the state has no {KEY!r}, and this worker trains rows of "
            f"{', '.join(own['rows'])}, whose optimizer would begin anew. Load what state_dict() "
            "of this worker returned; or a state of torch's own, before "
            "gradring.torch.distributed()"
        )
    if not isinstance(saved, Mapping) or not all(
        isinstance(one, Mapping) for one in saved.values()
    ):
        raise InvalidArgument(f"load_state_dict: {KEY!r} is no dict of tables' states")
    driver.load_state_dict({**own, "rows": {name: _as_arrays(one) for name, one in saved.items()}})


def _trainer(rows: Rows | None) -> GeoOptimizer | None:
    driver = None if rows is None else rows.driver
    return driver if isinstance(driver, GeoOptimizer) else None


def _as_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        # Ids have 64 bits without a sign, for which torch has few functions.
        name: torch.from_numpy(value.view(np.int64) if name == "ids" else value)
        if isinstance(value, np.ndarray)
        else value
        for name, value in state.items()
    }


def _as_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    arrays = {
        name: value.detach().cpu().numpy() if torch.is_tensor(value) else value
        for name, value in state.items()
    }
    if getattr(arrays.get("ids"), "dtype", None) == np.int64:
        arrays["ids"] = arrays["ids"].view(np.uint64)
    return arrays
