"""send and recv of a process group, under torch's names.

torch.distributed's blocking `send` and `recv` are `isend` and `irecv` with a wait; both start here
and return at once.
"""

from __future__ import annotations

from typing import Any

from gradring.collectives.communicator import Communicator
from gradring.torch.c10d.calls.call import Call
from gradring.torch.c10d.calls.work import Work
from gradring.torch.c10d.operations.collectives import Tensors


class Messages:
    """What passes between two ranks of a process group; see torch.distributed for each."""

    comm: Communicator

    def _message(self, name: str, result: Any) -> Call:
        raise NotImplementedError

    def send(self, tensors: Tensors, dst_rank: int, tag: int = 0) -> Work:
        """Start sending a tensor to a rank of the group."""
        with self._message("send", list(tensors)) as call:
            for tensor in tensors:
                call.started(self.comm.send(call.input(tensor), dst_rank, tag, **call.options))
        return call.work

    def recv(self, tensors: Tensors, src_rank: int, tag: int = 0) -> Work:
        """Start receiving a tensor of the same dtype and size from a rank of the group."""
        return self._receive(tensors, src_rank, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Start receiving from whoever sends first; the handle's ``source_rank()`` says who did."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Tensors, source: int | None, tag: int) -> Work:
        with self._message("recv", list(tensors)) as call:
            for tensor in tensors:
                call.started(self.comm.recv(call.output(tensor), source, tag, **call.options))
        return call.work
