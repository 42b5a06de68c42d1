"""Arrays of other libraries, as far as DLPack shows them."""

from __future__ import annotations

from typing import Any


class OnlyDlpack:
    """An array that can do nothing but DLPack."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()


class OnDevice(OnlyDlpack):
    """One that says it lives on a device."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (8, 0)  # kDLMetal.
