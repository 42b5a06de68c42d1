"""What this copy of gradring was built with, and what of a GPU's software it finds here.

`build_info` is for users and bug reports; `gpu_facts` is for `gradring doctor`, which also wants to
know what the driver says. Neither fails because something is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gradring.errors import DeviceError
from gradring.machine import nccl

Facts = dict[str, Any]


def build_info() -> Facts:
    """Return how gradring was built and what it would use on GPUs.

    Opens NCCL, to ask for its version, but neither the GPU plugin nor a driver.

    Returns:
        Plain values, fit for JSON: ``version``; ``wire``, which is the same wherever two builds
        understand each other; ``compiler`` of the core; ``cuda`` with
        ``built_for`` (toolkit and architectures, or ``None`` in a build without GPU plugin),
        ``built_why`` (the decision's reason) and ``plugin`` (the plugin's path, ``None`` where
        there is no such file; ``$GRADRING_GPU_PLUGIN`` names another); ``nccl`` with ``version``
        and ``path``, or with ``missing``, the reason why there is none.
    """
    core = import_module("gradring._core")
    build = core.gpu_build()
    return {
        "version": core.version,
        "wire": core.wire_version,
        "compiler": core.compiler,
        "cuda": {
            "built_for": build["built_for"] or None,
            "built_why": build["built_why"],
            "plugin": build["path"] if build["is_there"] else None,
        },
        "nccl": nccl_facts(),
    }


def nccl_facts() -> Facts:
    """Return ``version`` and ``path`` of the NCCL that is used here, or what is ``missing``."""
    try:
        version, path = nccl.find()
    except DeviceError as error:
        return {"missing": str(error)}
    return {"version": version, "path": path}


def gpu_facts() -> Facts:
    """Return what the GPU plugin says of this machine.

    Returns:
        Plain values: ``plugin`` (what it was built for), ``driver`` (the CUDA version it serves,
        such as ``"13.0"``), ``devices`` (one text each), and, where there is none that can be used,
        ``missing`` with the reason.
    """
    core = import_module("gradring._core")
    facts: Facts = {"plugin": None, "driver": None, "devices": []}
    try:
        facts["plugin"], version = core.gpu_driver()
        facts["driver"] = f"{version // 1000}.{version % 1000 // 10}" if version else None
        facts["devices"] = [_device_text(device) for device in core.gpu_devices()]
    except DeviceError as error:
        facts["missing"] = str(error)
    return facts


def _device_text(device: Facts) -> str:
    major, minor = device["capability"]
    gib = device["memory_bytes"] / 2**30
    return f"{device['name']} (sm_{major}{minor}, {gib:.0f} GiB, {device['bus_id']})"
