"""`ProcessGroup`: a `gradring.Communicator` as torch.distributed sees it.

Python calls its methods directly; torch's C++ (DDP, functional collectives) finds them by name. It
has the names of torch 2.14, of 2.13 and those before. Callable from any thread, autograd's too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradring.collectives.communicator import Communicator
from gradring.errors import Error
from gradring.torch.c10d import BACKEND
from gradring.torch.c10d.calls.call import Call
from gradring.torch.c10d.calls.errors import for_torch
from gradring.torch.c10d.calls.lanes import Completion
from gradring.torch.c10d.calls.work import Flight, Work
from gradring.torch.c10d.operations.collectives import Collectives
from gradring.torch.c10d.operations.gathering import Gathering
from gradring.torch.c10d.operations.messages import Messages
from gradring.torch.c10d.operations.monitored import MonitoredBarrier
from gradring.torch.c10d.operations.sparse import SparseReducer
from gradring.torch.c10d.untraced import leave_untraced


class ProcessGroup(Collectives, Gathering, Messages, dist.ProcessGroup):
    """A group of ranks under torch.distributed.

    Attributes:
        comm: Its communicator; closing the group closes it.
        global_ranks: Rank in the job of each rank of the group.
    """

    def __init__(self, comm: Communicator, global_ranks: Sequence[int], timeout: float) -> None:
        """Wrap a communicator.

        Args:
            comm: To be used by nobody else.
            global_ranks: Rank in the job of each rank of the group.
            timeout: Longest time without progress of a call that does not say, in seconds.
        """
        super().__init__(comm.rank, comm.world_size)  # type: ignore[call-arg]
        self.comm = comm
        self.global_ranks = list(global_ranks)
        self._timeout = timeout
        self._name = ""
        self._desc = ""
        self._sparse = SparseReducer(comm, "group")
        self._monitored = MonitoredBarrier(comm, "group")
        self._completion = Completion()
        # Here and not in the process: members of a later group have other histories.
        self._made: Counter[str] = Counter()

    def subgroup(self, ranks: Sequence[int], name: str) -> Communicator:
        """Make the communicator of some ranks; nobody is asked.

        Args:
            ranks: Of this group, this rank's among them.
            name: torch's. It may come again for the same ranks, once their group is destroyed.

        Raises:
            Closed: The group has failed.
        """
        nth = self._made[name]
        self._made[name] += 1
        return self.comm.subgroup(ranks, f"{name} {nth}")

    def _call(self, name: str, options: Any, result: Any) -> Call:
        call = Call(options, result, timeout=self._timeout, watcher=self._completion.in_order)
        call.name = name
        return call

    def _message(self, name: str, result: Any) -> Call:
        call = Call(
            None, result, timeout=self._timeout, watcher=self._complete_any, patience=self._timeout
        )
        call.name = name
        return call

    def _complete_any(self, flight: Flight) -> None:
        self._completion.when_ready(flight, flight.patience)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait until every rank has come here, and say who has not.

        Args:
            timeout: ``None`` is the group's.
            wait_all_ranks: Name all ranks that are missing, not only the first.

        Raises:
            TimedOut: On rank 0, names the missing ranks; the group stays usable.
            PeerLost: A rank died, froze or left.
        """
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        try:
            self._monitored.wait(seconds, self.global_ranks, wait_all_ranks=wait_all_ranks)
        except Error as error:
            raise for_torch(error) from error.__cause__

    @property
    def timeout(self) -> float:
        """Longest time without progress of a call that does not say, in seconds."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long calls from now on may take without progress."""
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _get_backend(self, device: torch.device) -> ProcessGroup:  # type: ignore[override]
        # torch's own group has a backend for each kind of device; this one is all of its own.
        del device
        return self

    def abort(self) -> None:
        """Close at once; operations that run or wait fail, here and on the other ranks."""
        self._leave(linger=False)

    def shutdown(self) -> None:
        """Leave in good order; operations that still run here fail with `Closed`.

        Messages of ``isend`` that nobody waited for still go, as `Communicator.close` says.
        """
        self._leave(linger=True)

    def _leave(self, *, linger: bool) -> None:
        self._sparse.close(linger=linger)
        self._monitored.close(linger=linger)
        self.comm.close(linger=linger)
        self._completion.stop()

    def getBackendName(self) -> str:  # noqa: N802 - C++ looks for these names
        """Return the backend's name."""
        return BACKEND

    def getGroupName(self) -> str:  # noqa: N802
        """Return the group's name."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Note the group's name."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the group's description."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        """Note the group's description."""
        self._desc = desc

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """The group's name; torch makes it."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The group's description; torch makes it."""
        return self._desc

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    @property
    def supports_splitting(self) -> bool:
        """Whether torch may split a group instead of making one; it need not."""
        return False

    @property
    def supports_reconfigure(self) -> bool:
        """Whether the group may be made anew of other ranks; torch 2.14 asks."""
        return False

    @property
    def supports_window(self) -> bool:
        """Whether the group has windows into the memory of its ranks; torch 2.14 asks."""
        return False

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]


leave_untraced(Collectives, Gathering, Messages, ProcessGroup, Work)
