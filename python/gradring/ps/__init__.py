"""The parameter server: tables that live on servers, pulled from and pushed to by workers.

`connect` finds the servers and returns a `ParameterServer`; that makes a `SparseTable` (ids to rows
of floats) or a `DenseTable` (an array). `ids_of` makes ids of strings. `arguments` checks what
calls are given, `saved` has checkpoints' files and exports. docs/parameter_server.md is the guide.
"""

from gradring.ps import checkpoint
from gradring.ps.arguments.entries import Count, Probability, Slot, Slots
from gradring.ps.client import ParameterServer
from gradring.ps.connecting import connect, current
from gradring.ps.dense import DenseTable
from gradring.ps.handles import Pending, Pushed
from gradring.ps.sparse import SparseTable
from gradring.ps.string_ids import ids_of

__all__ = [
    "Count",
    "DenseTable",
    "ParameterServer",
    "Pending",
    "Probability",
    "Pushed",
    "Slot",
    "Slots",
    "SparseTable",
    "checkpoint",
    "connect",
    "current",
    "ids_of",
]
