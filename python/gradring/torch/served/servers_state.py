"""`ServersState`: `state_dict` and `load_state_dict` where servers have an optimizer's state.

What is saved is torch's own format, so that it loads into a plain optimizer, or one in any mode.
"""

from __future__ import annotations

from typing import Any

import torch

from gradring.modes.stepping.at_servers import AtServers
from gradring.modes.stepping.optimizer import ModeOptimizer
from gradring.optim.state import Entry
from gradring.torch.embeddings.row_state import load_rows, load_with_rows, with_rows
from gradring.torch.embeddings.rows import Rows
from gradring.torch.served.served_parameters import ServedParameters
from gradring.torch.served.server_rules import rules_of


class ServersState(torch.optim.Optimizer):
    """A part of `ServedOptimizer`, which joins and steps."""

    driver: ModeOptimizer
    rows: Rows | None = None
    _parameters: ServedParameters

    @property
    def has_state_on_servers(self) -> bool:
        """Whether servers have its state; with `gradring.Geo` this worker has."""
        return isinstance(self.driver, AtServers)

    def state_dict(self) -> dict[str, Any]:
        """Return settings and state in torch's format, wherever the state is.

        Where servers step it is theirs. Any worker may call it alone, such as rank 0 that saves:
        it waits until its own steps are done, and asks for values and state, 12 bytes for each
        float of the parameters with Adam, in one round trip for each. With
        ``gradring.Sync(via="ps")`` it is the state behind the last step. In `gradring.Async` and
        `gradring.BoundedStaleness` it is what servers have when each parameter is read, so that
        state and values go together where nobody pushes meanwhile: between a `flush` of all
        workers and their next step. Parameters are not written, but where a step timed out: then
        it is finished first, as by `flush`.

        With `gradring.Geo` the state is this worker's, that of embeddings' rows too; in the other
        modes rows have theirs in their tables, and it is not in here (``ps.save``).

        Raises:
            TimedOut: Servers have not done this worker's steps in time, or do not answer; and as in
                `flush`, and so for other errors.
            Closed: The connection was closed.
        """
        if isinstance(self.driver, AtServers):
            entries = zip(self._parameters.params, self.driver.read_states(), strict=True)
            self.state.update({param: _as_tensors(entry) for param, entry in entries if entry})
        try:
            return with_rows(super().state_dict(), self.rows)
        finally:
            if self.has_state_on_servers:
                self.state.clear()  # A copy here would only grow old.

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over settings and state; a call of all workers together where servers step.

        There every worker calls it between the same two steps, with the same state: each waits
        until its steps are done, then for the others, and worker 0 writes the state to the servers,
        once. Values stay the servers', and every worker takes them; only what worker 0 has written
        into parameters since its last `step` or `flush` (``model.load_state_dict()``, but not into
        ``.data``) becomes theirs with it. Before `gradring.torch.distributed` it is torch's own,
        and may be called on worker 0 alone.

        With `gradring.Geo` it is this worker's own state, that of rows too.

        Raises:
            InvalidArgument: It has no state of a parameter that servers have stepped, or has what
                they do not keep, or settings that their rules cannot have; or state of rows is
                missing, or of other tables or rules; or several workers have no communicator to
                wait for each other by. As after any other error of this worker's, also of torch's
                own, nothing was changed.
            Mismatch: Another worker could not take it, and servers have what they had; or worker 0
                could not write it, and some parameters may have theirs: call it again.
            TimedOut: Others did not come, or servers did not bring rows that are new here.
            PeerLost: Another worker was lost; unless worker 0 was writing, nothing was changed.
            Closed: After `close`.
        """
        driver = self.driver
        if not isinstance(driver, AtServers):
            load_with_rows(self, super().load_state_dict, state_dict)
            return
        attributes, load, torch_step = vars(self), super().load_state_dict, super().step
        before = {name: attributes[name] for name in ("state", "param_groups")}

        def find() -> list[Entry]:
            load(state_dict)
            driver.successors(rules_of(self, torch_step))
            return self._parameters.entries(self.state)

        self._follow_memory()
        self._parameters.require_in_place()
        try:
            driver.load_states(
                find,
                self._parameters.names,
                self._parameters.written_by_the_script(),
                lambda: load_rows(self.rows, state_dict),
            )
        except BaseException:
            attributes.update(before)
            raise
        finally:
            self.state.clear()
        self._parameters.take_note()

    def _follow_memory(self) -> None:
        if self._parameters.follow():
            self.driver.move_params(self._parameters.memory)


def _as_tensors(entry: Entry) -> dict[str, Any]:
    # What is no array is a number of steps, which torch's SparseAdam has as one, too.
    return {
        name: value if isinstance(value, int) else torch.from_numpy(value)
        for name, value in entry.items()
    }
