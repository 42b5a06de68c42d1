"""Options that make no sense are refused before anything is trained."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def at_least(least: int) -> Callable[[str], int]:
    """A type for argparse: a whole number from `least` on."""

    def whole(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"it is at least {least}, got {number}")
        return number

    return whole


def new_file(text: str) -> Path:
    """A type for argparse: a file that can be written when the training has ended."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}: make it first")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder, and a file is written")
    return path
