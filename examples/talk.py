"""How much of its time a training loop spends on others."""

from __future__ import annotations

import time
from typing import Any


class Talk:
    """Adds up the seconds of what is done inside `with`: waiting for others, and telling them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._begin

    def count(self, module: Any) -> None:
        """Count what a torch module's forward takes."""
        module.register_forward_pre_hook(lambda *_: self.__enter__())
        module.register_forward_hook(lambda *_: self.__exit__())

    def leave_out(self, optimizer: Any) -> None:
        """Leave out what the steps of a torch optimizer take that are done on this worker."""
        optimizer.register_step_pre_hook(lambda *_: self.__exit__())
        optimizer.register_step_post_hook(lambda *_: self.__enter__())
