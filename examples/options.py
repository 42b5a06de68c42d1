"""Options whose help says their defaults, and which are refused where they make no sense."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Parser(argparse.ArgumentParser):
    """A description that is shown as it is written, and every default behind its option."""

    def __init__(self, description: str | None) -> None:
        as_written = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, formatter_class=as_written)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        if settings.get("default") not in (None, argparse.SUPPRESS):
            settings["help"] = f"{settings.get('help', '')} (default: %(default)s)".lstrip()
        return super().add_argument(*names, **settings)


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


def readable(text: str) -> Path:
    """A type for argparse: a file that is there."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return path
