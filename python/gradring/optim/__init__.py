"""Update rules over NumPy arrays, step by step those of `torch.optim`.

A rule says how a gradient changes a parameter; an optimizer such as `gradring.SyncOptimizer` says
when ranks talk.
"""

from gradring.optim.rules import SGD, Adam, AdamW, Rule, State

__all__ = ["SGD", "Adam", "AdamW", "Rule", "State"]
