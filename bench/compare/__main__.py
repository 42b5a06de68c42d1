"""Measures Gradring beside its peers: `python bench/compare [WHAT ...]`; --help says what."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # This folder is the package `compare`.

from compare.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
