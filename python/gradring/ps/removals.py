"""How often `shrink` may have dropped rows, for replicas of rows: no list of changes has these.

It is counted in a dense table that `shrink` and whoever keeps replicas (GEO) make or find.
"""

from __future__ import annotations

from gradring.core_arguments import OwnName
from gradring.optim import Sum

NAME = OwnName("gradring/removals")
SHAPE = (1,)
RULE = Sum()
