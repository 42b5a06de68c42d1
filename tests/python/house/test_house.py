"""The house's rules: who may include and import whom, how long things get, what must be documented.

Each rule is a function from a text to a list of complaints. It is shown a text that
breaks it, then the tree.
"""

from __future__ import annotations

import graphlib
import re
import subprocess
import sys
from pathlib import Path

import cpp_rooms
import python_rooms
from cpp_rooms import arrow_complaints
from gradring.doctor import choice_doctor
from gradring.tune import worker
from python_rooms import module_of, other_rooms, room_complaints, room_of
from source_tree import (
    CPP,
    ROOT,
    all_text_files,
    code_files,
    cpp_functions,
    includes,
    python_functions,
    python_imports,
)

LINES_TO_EXPLAIN = 400
LINES_TO_STOP = 600
LONG_FILES = {  # Path -> why it has more than LINES_TO_EXPLAIN lines.
    "python/gradring/_core.pyi": "one compiled module, one stub",
    "python/gradring/ps/client.py": "every call of a connection, each with what it promises",
    "tests/emulator/cuda_emulation.h": "all of CUDA's names that kernels use, force-included whole",
}
FUNCTION_LINES = 70
BANNED_WORDS = {"utils", "util", "common", "helpers", "helper", "misc", "manager"}

# Third-party modules that only these places may name, even inside a function.
HOMES = {
    "torch": (
        "python/gradring/torch/",
        "python/gradring/arrays/buffers.py",  # Tensors in, tensors out.
        "python/gradring/bench/peers/gloo.py",  # A program of its own: Gloo comes with torch.
        "python/gradring/bench/kernels/torch_peers.py",
        "python/gradring/keras/gradients.py",  # On that backend alone.
    ),
    "jax": ("python/gradring/jax/",),
    "keras": ("python/gradring/keras/",),
    "cupy": ("python/gradring/arrays/device_arrays.py",),
}
# Where they may stand at module level: nobody gets here who has not asked for them.
AT_MODULE_LEVEL = {
    "torch": ("python/gradring/torch/", "python/gradring/bench/peers/gloo.py"),
    "jax": ("python/gradring/jax/",),
    "keras": ("python/gradring/keras/",),
}


def import_complaints(path: str, text: str) -> list[str]:
    """Imports of `text`, a module of the package, that cost what not every user has."""
    complaints = []
    for found in python_imports(text):
        top = found.module.split(".")[0]
        if top in sys.stdlib_module_names or top in {"gradring", "numpy"}:
            continue
        homes = HOMES.get(top, ("",))
        if not path.startswith(homes):
            complaints.append(f"{path} imports {top}, which only {', '.join(homes)} may")
        elif not found.is_lazy and not path.startswith(AT_MODULE_LEVEL.get(top, ())):
            complaints.append(
                f"{path} imports {top}, an extra, at module level, not where it is used"
            )
    return complaints


def length_complaints(path: str, text: str) -> list[str]:
    """What is too long in `text`."""
    lines = len(text.splitlines())
    complaints = []
    if lines > LINES_TO_STOP:
        complaints.append(f"{path} has {lines} lines; {LINES_TO_STOP} is a stop")
    elif lines > LINES_TO_EXPLAIN and path not in LONG_FILES:
        complaints.append(f"{path} has {lines} lines and no reason in LONG_FILES")
    suffix = Path(path).suffix
    functions = []
    if suffix in CPP:
        functions = cpp_functions(text)
    elif suffix == ".py":
        functions = python_functions(text)
    complaints += [
        f"{path}:{function.line} {function.name} has {function.line_count} lines"
        for function in functions
        if function.line_count > FUNCTION_LINES
    ]
    return complaints


def name_complaints(path: Path) -> list[str]:
    """Words in a path that say nothing."""
    words = {word for part in path.parts for word in re.split(r"[_.\-]", part.lower())}
    return [f"{path}: '{word}' names no idea" for word in sorted(words & BANNED_WORDS)]


def opening_complaints(path: Path, text: str) -> list[str]:
    """A header opens with what it is; a source includes its own header first."""
    complaints = []
    if path.suffix in {".h", ".cuh"}:
        if not text.startswith("//"):
            complaints.append(f"{path} does not open with a comment that says what it is")
        if "\n#pragma once\n" not in text:
            complaints.append(f"{path} lacks #pragma once")
    elif (ROOT / path).with_suffix(".h").exists():
        own = path.relative_to("csrc").with_suffix(".h").as_posix()
        if includes(text)[:1] != [own]:
            complaints.append(f"{path} does not include {own} first")
    return complaints


def machine_complaints(path: Path, text: str) -> list[str]:
    """Absolute paths that exist on one machine only."""
    found = re.findall(r"(?<![\w.$}])/(?:work|home|root|Users)/\w[\w./-]*", text)
    return [f"{path} names {where}" for where in found]


def defined_types(text: str) -> set[str]:
    """Types with external linkage that a C++ text defines, with their namespace."""
    space = re.search(r"^namespace (gradring[\w:]*) \{", text, re.MULTILINE)
    if space is None:
        return set()
    shared = re.sub(
        r"^namespace \{\n.*?^\}  // namespace\n", "", text, flags=re.MULTILINE | re.DOTALL
    )
    found = re.findall(
        r"^(?:struct|class|union) (\w+)(?: final)?(?: : [^{;]*)? \{", shared, re.MULTILINE
    )
    return {f"{space[1]}::{name}" for name in found}


def environment_names(text: str) -> set[str]:
    """The GRADRING_* variables that a text reads or sets: they stand in quotes."""
    return set(re.findall(r"""["'](GRADRING_[A-Z0-9_]+)["'{]""", text))


def test_rooms_include_only_along_the_arrows() -> None:
    assert arrow_complaints("base", '#include "wire/bytes.h"') == [
        "base may not include wire/bytes.h"
    ]
    assert arrow_complaints("kernels", '  #  include "transport/links/link.h"  // why')
    assert arrow_complaints("collectives", '#include "wire/messages.h"')
    assert not arrow_complaints("collectives", '#include "wire/op_header.h"\n#include <vector>')
    assert arrow_complaints("ps/tables", '#include "ps/shard/shard.h"')
    assert arrow_complaints("transport/links", '#include "transport/world.h"')
    assert arrow_complaints("collectives/engine", '#include "gpu/api.h"')
    assert not arrow_complaints("collectives/device", '#include "gpu/api.h"')
    assert not arrow_complaints("ps/shard", '#include "ps/tables/spec.h"\n#include "base/error.h"')

    files = code_files(("csrc",), CPP)
    assert files
    assert not [
        f"{path}: {complaint}"
        for path in files
        for complaint in arrow_complaints(cpp_rooms.room_of(path), (ROOT / path).read_text())
    ]


def test_every_folder_of_csrc_has_a_room_and_every_arrow_is_used() -> None:
    graphlib.TopologicalSorter(cpp_rooms.ARROWS).prepare()  # Raises where there is a circle.
    rooms: set[str] = set()
    used: set[tuple[str, str]] = set()  # Folder, and outer room, of who includes; what of.
    for path in code_files(("csrc",), CPP):
        room = cpp_rooms.room_of(path)
        rooms |= {room, room.split("/")[0]}
        for header in includes((ROOT / path).read_text()):
            folder = header.rpartition("/")[0]
            targets = {header, folder, folder.split("/")[0]}
            used |= {(one, to) for one in (room, room.split("/")[0]) for to in targets}
    assert rooms == set(cpp_rooms.ARROWS)
    assert set(cpp_rooms.EXTRA_HEADERS) <= used
    assert {(room, to) for room, arrows in cpp_rooms.ARROWS.items() for to in arrows} <= used


def test_python_rooms_import_only_along_their_arrows() -> None:
    graphlib.TopologicalSorter(python_rooms.ARROWS).prepare()  # Raises where there is a circle.
    settings = "gradring.settings.config"
    assert room_complaints(settings, "from gradring import optim") == [
        "settings may not import gradring.optim"
    ]
    assert room_complaints(settings, "def f():\n    from gradring.launchers.roles import Role")
    assert room_complaints(settings, "if TYPE_CHECKING:\n    import gradring.ps.saved.files")
    assert room_complaints("gradring.errors", "from gradring.collectives import calling")
    assert room_complaints("gradring.ps.saved.files", "from gradring.ps import client")
    assert room_complaints("gradring.arrays.buffers", "import gradring as gr")
    assert room_complaints("gradring.launch.plan", "command('gradring', 'gradring.tune.worker')")
    assert not room_complaints(settings, "from gradring import _core, dtypes\nimport enum")
    assert not room_complaints("gradring.bench.rows.ids", "from gradring.bench import cases")
    assert not room_complaints("gradring.ps.saved.x", "from gradring.ps.dense import DenseTable")

    files = code_files(("python",), {".py"})
    assert files
    assert not [
        f"{path}: {complaint}"
        for path in files
        for complaint in room_complaints(module_of(path), (ROOT / path).read_text())
    ]


def test_every_module_of_the_package_has_a_room_and_every_python_arrow_is_used() -> None:
    used: dict[str, set[str]] = {room: set() for room in python_rooms.ARROWS}
    extra = set()
    for path in code_files(("python",), {".py"}):
        room = room_of(module_of(path))
        assert room != "front" or path == Path("python/gradring/__init__.py"), path
        for name, target in other_rooms(room, (ROOT / path).read_text()):
            if target in python_rooms.ARROWS[room]:
                used[room].add(target)
            else:
                extra |= {(room, name), (room, name.rpartition(".")[0])}
    assert used == python_rooms.ARROWS
    assert not set(python_rooms.EXTRA_IMPORTS) - extra


def test_python_imports_only_what_every_user_has() -> None:
    path = "python/gradring/collectives/communicator.py"
    assert import_complaints(path, "def f():\n    import torch")
    assert import_complaints(path, "from typing import Any\nfrom rich.table import Table")
    assert import_complaints(path, "try:\n    import cupy\nexcept ImportError:\n    pass")
    assert not import_complaints(path, "import numpy\ndef f():\n    from rich.table import Table")
    assert import_complaints("python/gradring/arrays/buffers.py", "import torch")
    assert not import_complaints("python/gradring/torch/optim.py", "import torch")

    files = code_files(("python",), {".py"})
    assert files
    assert not [
        complaint
        for path in files
        for complaint in import_complaints(path.as_posix(), (ROOT / path).read_text())
    ]


def test_importing_the_package_does_not_import_an_extra() -> None:
    script = "import sys, gradring; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()
    assert "gradring" in loaded
    extras = {"torch", "jax", "keras", "cupy", "rich", "matplotlib", "sklearn", "ml_dtypes"}
    assert not extras & set(loaded)


def test_files_and_functions_stay_short() -> None:
    body = "  step();\n" * FUNCTION_LINES
    assert length_complaints("a.cc", f"int f(int x) {{\n{body}}}\n")
    assert length_complaints("a.cc", f"class A {{\n  A() : b_{{1}}, c_(2) {{\n{body}}}\n}};\n")
    assert not length_complaints("a.cc", f"class A {{\n{body}}};\n")
    assert length_complaints("a.py", "def f():\n" + "    step()\n" * FUNCTION_LINES)
    docstring = '    """Say.\n' + "\n" * FUNCTION_LINES + '    """\n'
    assert not length_complaints("a.py", "def f():\n" + docstring)
    assert length_complaints("a.py", "\n" * (LINES_TO_EXPLAIN + 1))
    assert length_complaints("a.py", "\n" * (LINES_TO_STOP + 1))

    assert not [
        complaint
        for path in code_files()
        for complaint in length_complaints(path.as_posix(), (ROOT / path).read_text())
    ]


def test_long_files_with_a_reason_are_still_long() -> None:
    for path in LONG_FILES:
        assert len((ROOT / path).read_text().splitlines()) > LINES_TO_EXPLAIN, path


def test_names_say_something() -> None:
    assert name_complaints(Path("csrc/base/string_utils.h"))
    assert name_complaints(Path("python/gradring/common/x.py"))
    assert not name_complaints(Path("csrc/collectives/communicator/communicator.h"))

    assert not [complaint for path in code_files() for complaint in name_complaints(path)]


def test_headers_say_what_they_are_and_sources_include_their_own_header_first() -> None:
    assert len(opening_complaints(Path("csrc/base/x.h"), "#include <vector>\n")) == 2
    unsorted = '#include "base/text.h"\n#include "base/error.h"\n'
    assert opening_complaints(Path("csrc/base/error.cc"), unsorted)

    assert not [
        complaint
        for path in code_files(("csrc",), CPP)
        for complaint in opening_complaints(path, (ROOT / path).read_text())
    ]


def test_no_two_files_define_a_type_of_one_name() -> None:
    # The linker would take one file's functions of it for the other's.
    hidden = "namespace {\nstruct A {\n};\n}  // namespace\n"
    text = "namespace gradring::ps {\n" + hidden + "class B final : C {\n};\n}"
    assert defined_types(text) == {"gradring::ps::B"}

    homes: dict[str, list[str]] = {}
    for path in code_files(("csrc",), CPP):
        for name in defined_types((ROOT / path).read_text()):
            homes.setdefault(name, []).append(str(path))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


def test_prefetches_cannot_be_dropped() -> None:
    """GCC drops calls of functions that only prefetch, unless they are always inlined."""
    texts = {path: (ROOT / path).read_text() for path in code_files(("csrc",), CPP)}
    users = [path for path, text in texts.items() if "__builtin_prefetch" in text]
    assert users == [Path("csrc/base/prefetch.h")]
    functions = re.findall(
        r"^(.*)\bvoid (?:pre)?fetch_?\w*\(", "\n".join(texts.values()), re.MULTILINE
    )
    assert len(functions) > 6
    assert not [before for before in functions if "GRADRING_PREFETCHES" not in before]


def test_nothing_names_a_path_of_one_machine() -> None:
    bad = "data = '" + "/" + "home/someone/data.csv'"
    assert machine_complaints(Path("a.py"), bad)
    assert not machine_complaints(Path("a.py"), "look in ../data and $HOME/data")

    assert not [
        complaint for path, text in all_text_files() for complaint in machine_complaints(path, text)
    ]


def test_every_environment_variable_is_documented_and_every_documented_one_exists() -> None:
    text = "GRADRING_ASSERT(x); a = env['GRADRING_X1']; b = \"GRADRING_Y\""
    assert environment_names(text) == {"GRADRING_X1", "GRADRING_Y"}

    used = {
        name
        for path in code_files(("csrc", "python", "bench", "examples"))
        for name in environment_names((ROOT / path).read_text())
    }
    page = (ROOT / "docs" / "configuration.md").read_text()
    documented = set(re.findall(r"`(GRADRING_[A-Z0-9_]+)`", page))
    assert used == documented


def test_numbers_that_python_repeats_are_the_cores() -> None:
    repeated = {
        ("csrc/collectives/plan/plan.h", "kPieceBytes"): worker._PIECE_BYTES,
        ("csrc/collectives/engine/engine.cc", "kHierarchicalBytes"): (
            choice_doctor._HIERARCHICAL_BYTES
        ),
    }
    for (path, name), ours in repeated.items():
        found = re.search(rf"\b{name} = (\d+) \* 1024;", (ROOT / path).read_text())
        assert found, (path, name)
        assert int(found[1]) * 1024 == ours, name
