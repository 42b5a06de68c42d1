"""Where NCCL is: a library that gradring opens when it is first needed and never ships."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from pathlib import Path

_LIBRARY = "libnccl.so.2"


def wheel_paths() -> list[str]:
    """Return where the packages nvidia-nccl-cu* have put the library; imports nothing of theirs."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return []
    places = [] if spec is None else spec.submodule_search_locations or []
    paths = [Path(place) / "lib" / _LIBRARY for place in places]
    return [str(path) for path in paths if path.is_file()]


def find() -> tuple[str, str]:
    """Open NCCL, unless that is done already.

    ``$GRADRING_NCCL_LIB`` comes first, then a copy that torch or CuPy has loaded, then the package
    nvidia-nccl-cu*, then the system's.

    Returns:
        Its version, such as ``"2.28.9"``, and its path.

    Raises:
        DeviceError: There is none, or it is older than 2.18.
    """
    version, path = import_module("gradring._core").find_nccl(wheel_paths())
    return str(version), str(path)
