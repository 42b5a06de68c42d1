"""The GPU plugin: in the wheel where nvcc was there, opened only when asked, clear on failure."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gradring as gr
from gradring import _core
from source_tree import ROOT

BUILD = gr.build_info()["cuda"]
IS_BUILT = BUILD["built_for"] is not None

# A plugin of the tests' own, with as much of a table as `ABI` and `DEVICES` say.
PLUGIN = """
#include "gpu/api.h"
static int count_devices(int* count) { *count = DEVICES; return 0; }
static int version_of_driver(int* version) { *version = DRIVER; return 0; }
static const char* text_of(int) { return "made up"; }
static gradring_gpu_runtime runtime = {};
static gradring_gpu_api api = {};
extern "C" const gradring_gpu_api* gradring_gpu_get_api() {
  runtime.device_count = &count_devices;
  runtime.driver_version = &version_of_driver;
  api.abi = ABI;
  api.bytes = sizeof(api);
  api.build = "made up by a test";
  api.error_text = &text_of;
  api.runtime = &runtime;
  return &api;
}
"""


def run(code: str, **environ: str) -> str:
    """What a fresh interpreter prints that runs `code`, with the plugin of the build."""
    names = {**os.environ, "GRADRING_GPU_PLUGIN": "", **environ}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=60, env=names
    ).stdout


def why_no_devices(plugin: object = "", **environ: str) -> str:
    """The text of the DeviceError that asking for devices raises."""
    code = (
        "import gradring as gr, gradring._core as core\n"
        "try:\n    core.gpu_devices()\n"
        "except gr.DeviceError as error:\n    print(error)\n"
        "else:\n    print('no error')\n"
    )
    return run(code, GRADRING_GPU_PLUGIN=str(plugin), **environ).strip()


def compile_plugin(path: Path, *, abi: int = 2, driver: int = 13000, devices: int = 0) -> Path:
    """Compile `PLUGIN`."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile a plugin with")
    source = path.with_suffix(".cc")
    source.write_text(PLUGIN)
    subprocess.run(
        [
            compiler, "-std=c++20", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", f"-DABI={abi}",
            f"-DDRIVER={driver}", f"-DDEVICES={devices}", "-o", path, source,
        ],
        check=True, timeout=60,
    )  # fmt: skip
    return path


def test_importing_and_reducing_opens_no_file_of_a_gpu() -> None:
    opened = run(
        "import gradring as gr, numpy as np\n"
        "gr.init().all_reduce(np.ones(4, np.float32))\n"
        "print(open('/proc/self/maps').read())"
    )
    assert "_core" in opened
    for name in ("libgradring_cuda", "libcuda", "libcudart", "libnccl"):
        assert name not in opened


def test_the_build_says_what_it_was_built_for_and_why() -> None:
    info = gr.build_info()
    assert json.loads(json.dumps(info)) == info
    assert info["version"]
    assert info["compiler"]
    assert BUILD["built_why"]
    if IS_BUILT:
        assert BUILD["built_for"].startswith("CUDA 1")
        assert "90" in BUILD["built_for"]


def test_the_wheel_holds_its_types_and_the_plugin_if_and_only_if_it_was_built() -> None:
    try:
        files = importlib.metadata.files("gradring") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    installed = [Path(str(file.locate())).resolve() for file in files]
    if Path(str(gr.__file__)).resolve() not in installed:
        pytest.skip("gradring is imported from a source tree, not from an installed wheel")
    for name in ("py.typed", "_core.pyi"):  # Else a type checker takes every call for Any.
        assert Path(str(gr.__file__)).resolve().with_name(name) in installed
    plugins = [path for path in installed if path.name == "libgradring_cuda.so"]
    assert len(plugins) == (1 if IS_BUILT else 0)
    if IS_BUILT:
        assert plugins[0].parent == Path(str(gr.__file__)).resolve().parent
        assert plugins[0].stat().st_size > 100_000  # CUDA's runtime is in it.
        assert Path(BUILD["plugin"]).resolve() == plugins[0]


@pytest.mark.skipif(not BUILD["plugin"], reason="this build has no GPU plugin")
def test_the_plugin_loads_without_a_driver_and_says_so() -> None:
    text = why_no_devices(CUDA_VISIBLE_DEVICES="")
    assert text.startswith(("no GPU driver on this machine", "the GPU driver, for CUDA"))
    assert BUILD["built_for"] in text or "shows no device" in text
    assert "libgradring_cuda" in run(
        "import gradring._core as core\ncore.gpu_driver()\nprint(open('/proc/self/maps').read())"
    )


# The plugin's tables in the order of gradring_gpu_api, and the headers that declare them.
TABLES = {
    "gpu_runtime": "api.h",
    "stream_kernels": "stream_calls.h",
    "codec_kernels": "codec_calls.h",
    "row_kernels": "row_calls.h",
}


class Api(ctypes.Structure):
    """`gradring_gpu_api` of csrc/gpu/api.h."""

    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("build", ctypes.c_char_p),
        ("error_text", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in TABLES),
    )


@pytest.mark.skipif(not BUILD["plugin"], reason="this build has no GPU plugin")
@pytest.mark.parametrize("table", TABLES)
def test_every_entry_of_the_plugins_tables_is_there(table: str) -> None:
    header = (ROOT / "csrc" / "gpu" / TABLES[table]).read_text()
    struct = re.search(rf"struct gradring_{table} {{\n(.*?)^}};", header, re.DOTALL | re.MULTILINE)
    assert struct is not None
    names = re.findall(r"\(\*(\w+)\)\(", struct[1])
    assert names
    get_api = ctypes.CDLL(BUILD["plugin"]).gradring_gpu_get_api
    get_api.restype = ctypes.POINTER(Api)
    api = get_api().contents
    assert api.bytes == ctypes.sizeof(Api)
    address = getattr(api, table)
    assert address
    if "uint32_t bytes;" in struct[1]:
        assert ctypes.c_uint32.from_address(address).value == 8 * (1 + len(names))
        address += 8
    entries = (ctypes.c_void_p * len(names)).from_address(address)
    assert [name for name, entry in zip(names, entries, strict=True) if not entry] == []


@pytest.mark.skipif(IS_BUILT, reason="this build has a GPU plugin")
def test_a_build_without_plugin_says_why_and_what_to_do() -> None:
    text = why_no_devices()
    assert text.startswith("this build of gradring has no GPU plugin: ")
    assert BUILD["built_why"] in text
    assert "GRADRING_CUDA=ON" in text


def test_a_file_that_is_no_plugin_is_refused_by_name(tmp_path: Path) -> None:
    gone = tmp_path / "gone.so"
    assert why_no_devices(gone).startswith(f"GPU plugin {gone}: there is no such file")
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert why_no_devices(text).startswith(f"GPU plugin {text}: ")
    assert "it has no gradring_gpu_get_api" in why_no_devices(_core.__file__)


def test_a_plugin_of_another_version_is_refused(tmp_path: Path) -> None:
    other = compile_plugin(tmp_path / "other.so", abi=999)
    text = why_no_devices(other)
    assert text.startswith(f"GPU plugin {other}: it speaks version 999")
    assert "this library version 2" in text


def test_each_lack_of_a_device_has_its_own_text(tmp_path: Path) -> None:
    bare = compile_plugin(tmp_path / "bare.so", driver=0)
    assert why_no_devices(bare).startswith("no GPU driver on this machine")
    empty = compile_plugin(tmp_path / "empty.so")
    assert "for CUDA 13.0, shows no device" in why_no_devices(empty)


def test_the_doctor_tells_of_the_gpu_and_finds_no_fault_in_having_none() -> None:
    code = "import json\nfrom gradring.doctor.machine_doctor import render, report\n"
    code += "found = report({})\n"
    code += "print(json.dumps([found['gpu'], found['problems'], render(found)]))"
    gpu, problems, text = json.loads(run(code, CUDA_VISIBLE_DEVICES=""))
    assert gpu["devices"] == []
    assert gpu["missing"] in text
    assert problems == []


def configure(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Let CMake configure the core alone, in a folder of its own."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    command = [cmake, "-S", str(ROOT), "-B", str(tmp_path), *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)


def test_a_build_that_must_have_the_plugin_fails_without_nvcc(tmp_path: Path) -> None:
    result = configure(tmp_path, "-DGRADRING_CUDA=ON", "-DCMAKE_CUDA_COMPILER=/nowhere/nvcc")
    assert result.returncode != 0
    text = " ".join(result.stderr.split())  # CMake breaks lines.
    assert "GRADRING_CUDA=ON, but /nowhere/nvcc --version failed" in text


def test_a_build_without_the_plugin_says_so_and_has_no_target_for_it(tmp_path: Path) -> None:
    result = configure(tmp_path, "-DGRADRING_CUDA=OFF")
    assert result.returncode == 0, result.stderr
    assert "GPU plugin: OFF (GRADRING_CUDA=OFF)" in result.stdout
    targets = subprocess.run(
        ["cmake", "--build", str(tmp_path), "--target", "help"],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    assert "gradring_core" in targets
    assert "gradring_cuda" not in targets
