"""The options that the demo hands on to its processes."""

from __future__ import annotations

import argparse


def shared_options() -> argparse.ArgumentParser:
    """Return a parser to build on."""
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--epochs", type=int, default=40, help="(default: %(default)s)")
    options.add_argument("--global-batch", type=int, default=128, help="(default: %(default)s)")
    options.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    return options
