"""The rooms of the Python package, and which of them may import which; test_house.py asks here.

A room is a folder, or a module of the top level that is one of its own. Imports count wherever they
stand: inside a function, where they only put off a load, and for type checkers, since who names a
type of a room knows that room. So do strings that are a module's name, as `import_module` takes
it. A folder that is no room belongs to the one around it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from source_tree import python_imports

# Modules of the top level that stand below all rooms.
BASE = {"_core", "core_arguments", "dtypes", "errors", "initial", "operations", "timeouts"}

ARROWS = {
    "__main__": {"cli"},
    "cli": {
        "demo", "doctor", "tune", "bench", "launch", "ps", "trace", "machine", "settings",
        "commands", "base",
    },
    "demo": {"front", "launch", "progress", "commands", "base"},
    "doctor": {"tune", "bench", "launch", "machine", "launchers", "settings", "commands", "base"},
    "tune": {"front", "bench", "collectives", "machine", "settings", "commands", "base"},
    "bench": {
        "front", "launch", "optim", "collectives", "gpu", "machine", "launchers", "settings",
        "commands", "base",
    },
    "launch": {"launchers", "settings", "commands", "base"},
    # The package itself: the names of `gradring.__all__`, each loaded when it is asked for.
    "front": {
        "modes", "modes.geo", "optim", "ps", "metrics", "collectives", "compression", "prometheus",
        "trace", "machine", "base",
    },
    "torch": {
        "torch.served", "torch.embeddings", "torch.gradients", "torch.batch_norm", "torch.c10d",
        "torch.state", "modes", "modes.stepping", "optim", "collectives", "compression", "settings",
        "base",
    },
    "keras": {"jax", "collectives", "base"},
    "jax": {"modes", "collectives", "compression", "base"},
    "torch.served": {
        "torch.embeddings", "torch.gradients", "torch.batch_norm", "modes", "modes.geo",
        "modes.stepping", "optim", "collectives", "arrays", "base",
    },
    "torch.embeddings": {
        "torch.gradients", "modes", "modes.geo", "modes.stepping", "modes.parameters",
        "modes.stores", "optim", "arrays", "base",
    },
    "torch.gradients": {"torch.c10d.calls", "optim", "collectives", "compression", "gpu", "base"},
    "torch.batch_norm": {"torch.c10d", "torch.c10d.calls", "collectives", "base"},
    "torch.state": {"collectives", "base"},
    "torch.c10d": {
        "torch.c10d.operations", "torch.c10d.calls", "collectives", "machine", "launchers",
        "settings", "base",
    },
    "torch.c10d.operations": {"torch.c10d.calls", "collectives", "base"},
    "torch.c10d.calls": {"collectives", "gpu", "base"},
    "modes": {
        "modes.geo", "modes.stepping", "modes.parameters", "modes.stores", "optim", "collectives",
        "settings", "base",
    },
    "modes.geo": {
        "modes.stepping", "modes.parameters", "modes.stores", "ps", "optim", "arrays", "base",
    },
    "modes.stepping": {
        "modes.parameters", "modes.stores", "optim", "collectives", "prometheus", "settings",
        "base",
    },
    "modes.parameters": {"modes.stores", "ps.arguments", "optim", "arrays", "base"},
    "modes.stores": {"ps", "ps.arguments", "optim", "collectives", "base"},
    "ps": {
        "ps.saved", "ps.arguments", "optim", "launchers", "prometheus", "settings", "arrays",
        "base",
    },
    "ps.saved": {"ps.arguments", "optim", "arrays", "base"},
    "ps.arguments": {"arrays", "base"},
    "optim": {"collectives", "arrays", "base"},
    "metrics": {"collectives", "base"},
    "collectives": {
        "gpu", "compression", "launchers", "prometheus", "settings", "arrays", "base",
    },
    "gpu": {"machine", "arrays", "base"},
    "compression": {"arrays", "base"},
    "arrays": {"base"},
    "launchers": {"settings", "base"},
    "prometheus": {"settings", "base"},
    "settings": {"commands", "base"},
    "trace": {"commands", "base"},
    "machine": {"base"},
    "commands": {"base"},
    "progress": set[str](),
    "base": set[str](),
}  # fmt: skip
# Single modules that a room may import besides its arrows, each with the reason.
EXTRA_IMPORTS = {
    ("modes.geo", "gradring.modes.contracts"): "the modes as values: what GEO is told to do",
    ("gpu", "gradring.collectives.communicator"): "types only: ranks agree through it on a way",
    ("ps.saved", "gradring.ps.dense"): "types only: tables are handed in to be read",
    ("ps.saved", "gradring.ps.sparse"): "types only: tables are handed in to be read",
}


def room_of(module: str) -> str:
    """The room of a dotted name of ours; names that are no module's are the package's own."""
    parts = module.split(".")[1:]
    for end in range(len(parts), 0, -1):
        if (name := ".".join(parts[:end])) in ARROWS:
            return name
    return "base" if set(parts[:1]) <= BASE and parts else "front"


def module_of(path: Path) -> str:
    """The dotted name of a file under python/."""
    parts = path.relative_to("python").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named_modules(text: str) -> list[str]:
    """What `text` names of ours: modules, and names in them; in its imports and as strings."""
    names = [
        name
        for found in python_imports(text)
        if found.module.split(".")[0] == "gradring"
        for name in [f"{found.module}.{each}" for each in found.names] or [found.module]
    ]
    strings = [
        node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    ]
    return names + [text for text in strings if re.fullmatch(r"gradring(\.\w+)+", text)]


def other_rooms(room: str, text: str) -> list[tuple[str, str]]:
    """What `text`, a module of `room`, imports of other rooms, and which rooms those are."""
    return [(name, target) for name in named_modules(text) if (target := room_of(name)) != room]


def is_extra(room: str, name: str) -> bool:
    """Whether an import is one of EXTRA_IMPORTS."""
    return (room, name) in EXTRA_IMPORTS or (room, name.rpartition(".")[0]) in EXTRA_IMPORTS


def room_complaints(module: str, text: str) -> list[str]:
    """Imports of `text`, a module of ours, that the diagram does not allow."""
    room = room_of(module)
    return [
        f"{room} may not import {name}"
        for name, target in other_rooms(room, text)
        if target not in ARROWS[room] and not is_extra(room, name)
    ]
