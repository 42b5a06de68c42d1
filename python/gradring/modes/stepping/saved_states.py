"""What `state_dict` of the modes' optimizers returns, checked before any of it is taken. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradring.errors import InvalidArgument
from gradring.modes.stores.store import Array
from gradring.optim.rules import CoreRule, State
from gradring.optim.state import require_kept

_FORM = "a saved state is a dict of 'dense' and 'rows', as state_dict returns it"


def names_of(rules: Iterable[Any]) -> list[str]:
    """Return the rules' names, which a state is saved with."""
    return [type(rule).__name__ for rule in rules]


def parts_of(saved: Any) -> tuple[list[Mapping[str, Any]], dict[str, Mapping[str, Any]]]:
    """Return the states of parameters and, by their tables, of rows.

    Raises:
        InvalidArgument: It is no saved state.
    """
    if not isinstance(saved, Mapping) or not {"dense", "rows"} <= saved.keys():
        raise InvalidArgument(_FORM)
    dense, rows = saved["dense"], saved["rows"]
    if not isinstance(dense, (list, tuple)) or not all(isinstance(s, Mapping) for s in dense):
        raise InvalidArgument("'dense' of a saved state is a list: a dict for each parameter")
    if not isinstance(rows, Mapping) or not all(
        isinstance(each, Mapping) and "ids" in each for each in rows.values()
    ):
        raise InvalidArgument(
            "'rows' of a saved state is a dict: for each table a dict of 'ids', 'step', 'updates' "
            "and arrays"
        )
    return list(dense), dict(rows)


def dense_states(
    saved: Mapping[str, Any], params: Sequence[Array], rules: Sequence[Any]
) -> list[State]:
    """Return copies of the states of parameters, as many as there are parameters.

    Args:
        saved: A saved state, of the right form.
        params: Whose they are.
        rules: One for each.

    Raises:
        InvalidArgument: One is of another rule or another shape.
    """
    names = names_of(rules)
    given = saved.get("rules", names)  # Those that were saved earlier say none.
    if not isinstance(given, (list, tuple)) or list(given) != names:
        raise InvalidArgument(f"the state is of rules {given}, the parameters have {names}")
    loaded = [copy.deepcopy(dict(state)) for state in saved["dense"]]
    for index, (rule, param, state) in enumerate(zip(rules, params, loaded, strict=True)):
        if isinstance(rule, CoreRule):
            require_kept(rule, param, state, f"parameter {index}")
    return loaded
