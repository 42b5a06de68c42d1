"""What Gradring itself has on a GPU: memory, streams, and the calls that device arrays take.

Users of torch or CuPy need nothing from here: every call of `gradring.Communicator` takes their
arrays (docs/gpu.md). `Array` and `Stream` are for programs that have neither, and for Gradring's
own tests and measurements. Nothing here is loaded, and no file of CUDA's touched, before the first
device array comes.
"""

from __future__ import annotations

from gradring.gpu.memory import Array, empty, from_numpy
from gradring.gpu.runtime import Event, Stream, build, device_count, device_facts

__all__ = [
    "Array",
    "Event",
    "Stream",
    "build",
    "device_count",
    "device_facts",
    "empty",
    "from_numpy",
]
