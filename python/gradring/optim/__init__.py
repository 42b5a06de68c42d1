"""Update rules, step by step those of `torch.optim`: for NumPy arrays and for tables.

A rule says how a gradient changes a parameter; an optimizer such as `gradring.SyncOptimizer` says
when ranks talk. docs/update_rules.md has the formulas.
"""

from gradring.optim import state
from gradring.optim.adaptive import FTRL, Adagrad, Adam, AdamW, RMSprop, SparseAdam
from gradring.optim.descent import SGD, Sum
from gradring.optim.local_rows import LocalRows
from gradring.optim.row_wise import RowWiseAdagrad, RowWiseAdam
from gradring.optim.rules import Rule, State

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "LocalRows",
    "RMSprop",
    "RowWiseAdagrad",
    "RowWiseAdam",
    "Rule",
    "SparseAdam",
    "State",
    "Sum",
    "state",
]
