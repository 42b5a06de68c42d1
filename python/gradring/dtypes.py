"""The element types that can be sent, by name and by their codes (csrc/base/types.h)."""

from __future__ import annotations

from typing import Any

import numpy as np

BFLOAT16 = 3

# NumPy's name -> the code on the wire.
DTYPE_CODES: dict[str, int] = {
    "float64": 0,
    "float32": 1,
    "float16": 2,
    "bfloat16": BFLOAT16,
    "int8": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "uint8": 8,
    "bool": 9,
}

# By dtype, because asking one for its name takes microseconds. Other byte orders are other keys.
_CODES: dict[np.dtype[Any], int] = {
    np.dtype(name): code for name, code in DTYPE_CODES.items() if code != BFLOAT16
}
_STORED: dict[int, np.dtype[Any]] = {code: dtype for dtype, code in _CODES.items()}
_STORED[BFLOAT16] = np.dtype(np.uint16)


def code_of(dtype: np.dtype[Any]) -> int | None:
    """Return a dtype's code; ``None`` where it cannot be sent."""
    code = _CODES.get(dtype)
    if code is None and dtype.name == "bfloat16":  # ml_dtypes; no dtype of NumPy's own.
        code = _CODES[dtype] = BFLOAT16
    return code


def name_of(code: int) -> str:
    """Return the name of a code."""
    return next(name for name, known in DTYPE_CODES.items() if known == code)


def stored_as(code: int) -> np.dtype[Any]:
    """Return the NumPy dtype that holds elements of a code: bfloat16 in uint16."""
    return _STORED[code]
