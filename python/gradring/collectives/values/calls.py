"""Values of ranks for all: numbers, texts, arrays and nests of them, without pickle."""

from __future__ import annotations

from typing import Any

from gradring.collectives import calling
from gradring.collectives.exchanges import Exchanges
from gradring.collectives.values.travelling import Exchange
from gradring.errors import InvalidArgument


class Values(Exchanges):
    """The methods of `gradring.Communicator` that take any plain value."""

    def broadcast_value(self, value: Any, root: int = 0, *, timeout: float | None = None) -> Any:
        """Return the root's value on every rank; a collective call.

        A value is a number, a string, bytes, True, False, None, a NumPy array or scalar, or a list,
        tuple or dict of such. It arrives with its types and bits: NaN, -0.0, whole numbers of any
        length, an array's dtype and shape (in C order; it owns its memory). No code comes over the
        wire. Arrays of more than 64 KiB go from their own memory into their own.

        Args:
            value: The root's; elsewhere not looked at.
            root: Whose value it is, the same on every rank.
            timeout: As for `all_reduce`, and the longest time that a rank may take to make room.

        Returns:
            The root's value; on the root the object itself.

        Raises:
            InvalidArgument: Something in the value cannot be sent: an object, a tensor (see
                `gradring.torch.broadcast_state`), an array of objects. Says what and where, on
                every rank, before anything of it is sent; the communicator stays open. Or ``root``
                is no rank.
            Mismatch: A rank has no memory for it, named on the others, where the communicator stays
                open, or as `all_reduce`.
            PeerLost: As `all_reduce`, and so for TimedOut and Closed. A rank that raises has
                nothing of the value.
        """
        root = calling.whole_number("broadcast_value: root", root)
        if not 0 <= root < self.world_size:
            raise InvalidArgument(
                f"broadcast_value: root {root} is not one of 0..{self.world_size - 1}"
            )
        exchange = Exchange(self, "broadcast_value", root=root, timeout=timeout)
        return exchange.values(lambda: value)[0]

    def all_gather_values(self, value: Any, *, timeout: float | None = None) -> list[Any]:
        """Return everybody's value, in rank order; a collective call.

        Args:
            value: As for `broadcast_value`; another one on every rank.
            timeout: As there.

        Returns:
            A value of each rank; at this rank's place the object itself.

        Raises:
            InvalidArgument: Something in the value of a rank cannot be sent, as in
                `broadcast_value`; names the rank.
            Mismatch: As `broadcast_value`, and so for PeerLost, TimedOut and Closed.
        """
        return Exchange(self, "all_gather_values", timeout=timeout).values(lambda: value)
