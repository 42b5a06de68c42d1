"""Finds or builds the emulated GPU plugin (tests/emulator): a device that is host memory."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from source_tree import ROOT

NAME = "libgradring_emulated.so"
SOURCES = (
    "csrc/gpu", "csrc/cuda", "csrc/kernels", "csrc/base/types.h", "tests/emulator",
    "tests/support/split_mix.h",
)  # fmt: skip


def _newest_source() -> float:
    files = [
        file
        for source in SOURCES
        for file in ((ROOT / source).rglob("*") if (ROOT / source).is_dir() else [ROOT / source])
        if file.is_file()
    ]
    return max(file.stat().st_mtime for file in files)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )


def emulated_plugin() -> Path:
    """Return the plugin's path: of the C++ tests' build if it is current, else of one made now.

    ``$GRADRING_EMULATED_PLUGIN`` names one that was made elsewhere. Set ``GRADRING_GPU_PLUGIN`` to
    it before a process first asks for a GPU.
    """
    if made_elsewhere := os.environ.get("GRADRING_EMULATED_PLUGIN"):
        return Path(made_elsewhere)
    newest = _newest_source()
    for built in (ROOT / "build").glob(f"*/tests/emulator/{NAME}"):
        if built.stat().st_mtime >= newest and "san" not in built.parts[-4]:
            return built
    cmake = shutil.which("cmake")
    if cmake is None:
        raise RuntimeError("the emulated GPU is not built (make test-cpp), and there is no cmake")
    folder = ROOT / "build" / "emulated"
    generator = ("-G", "Ninja") if shutil.which("ninja") else ()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Several of pytest's processes may come here at once.
        _run(
            cmake,
            "-S",
            str(ROOT),
            "-B",
            str(folder),
            *generator,
            "-DGRADRING_TESTS=ON",
            "-DGRADRING_CUDA=OFF",
        )
        _run(cmake, "--build", str(folder), "--target", "gradring_emulated", "--parallel", "2")
    return folder / "tests" / "emulator" / NAME


_POINTER = ctypes.c_void_p
_ENTRIES = {  # Of csrc/gpu/api.h's runtime: place in the table, parameters.
    "alloc": (4, (ctypes.c_int, ctypes.c_size_t, _POINTER)),
    "free": (5, (ctypes.c_int, _POINTER)),
    "stream_create": (10, (ctypes.c_int, ctypes.c_int, _POINTER)),
    "stream_destroy": (11, (ctypes.c_int, _POINTER)),
    "stream_query": (12, (ctypes.c_int, _POINTER)),
    "stream_synchronize": (13, (ctypes.c_int, _POINTER)),
}


class EmulatedDevice:
    """Device 0 of the emulated GPU that this process uses, without the package above it."""

    def __init__(self) -> None:
        library = ctypes.CDLL(os.environ["GRADRING_GPU_PLUGIN"])
        library.gradring_gpu_get_api.restype = ctypes.POINTER(_POINTER)
        # abi and bytes fill the first word of the table, then build, error_text, runtime.
        runtime = library.gradring_gpu_get_api()[3]
        self._table = ctypes.cast(runtime, ctypes.POINTER(_POINTER))

    def _call(self, entry: str, *arguments: Any) -> int:
        place, parameters = _ENTRIES[entry]
        code: int = ctypes.CFUNCTYPE(ctypes.c_int, *parameters)(self._table[place])(*arguments)
        return code

    def _made(self, entry: str, argument: int) -> int:
        made = _POINTER()
        assert self._call(entry, 0, argument, ctypes.addressof(made)) == 0
        assert made.value is not None
        return made.value

    def upload(self, values: npt.NDArray[Any]) -> tuple[int, npt.NDArray[Any]]:
        """Copy an array to the device: its address there, and a view of what is there."""
        address = self._made("alloc", max(values.nbytes, 1))
        memory = (ctypes.c_char * values.nbytes).from_address(address)
        view = np.frombuffer(memory, values.dtype).reshape(values.shape)
        view[...] = values
        return address, view

    def stream(self) -> int:
        return self._made("stream_create", 0)

    def synchronize(self, stream: int) -> None:
        assert self._call("stream_synchronize", 0, stream) == 0
