"""The programs that `gradring bench` starts as ranks, one module a library.

A peer's interpreter need not have gradring: there this package is run on its own, as `peers.gloo`,
from the folder around it. So nothing in here but `ours` and `link` imports gradring, and imports of
one another are relative. NumPy is all that the shared part needs.
"""
