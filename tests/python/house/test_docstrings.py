"""What docstrings say: every public name has one, with its errors, and their examples are true."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

import pytest

from source_tree import ROOT, code_files

ROOMS = ["metrics", "modes", "optim", "prometheus", "ps"]
EXTRAS = ["torch", "jax", "keras"]
EXAMPLED = [
    "Communicator.all_gather", "Communicator.all_reduce", "Communicator.split", "SyncOptimizer",
    "join", "metrics.AUC", "ps.ParameterServer.sparse_table", "ps.connect", "shard",
]  # fmt: skip


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every public name, with what it is."""
    monkeypatch.setenv("KERAS_BACKEND", "numpy")
    rooms = ["gradring", *(f"gradring.{room}" for room in ROOMS)]
    rooms += [f"gradring.{each}" for each in EXTRAS if importlib.util.find_spec(each)]
    names: dict[str, Any] = {}
    for room in rooms:
        module = importlib.import_module(room)
        assert len(set(module.__all__)) == len(module.__all__)
        names |= {f"{room}.{name}": getattr(module, name) for name in module.__all__}
    return names


def undocumented(name: str, value: object) -> list[str]:
    """`name`, and its public methods, as far as they lack a docstring of their own."""
    if not callable(value) and not isinstance(value, types.ModuleType):
        return []  # A plain value, such as __version__.
    missing = [] if inspect.getdoc(value) else [name]
    if inspect.isclass(value):
        missing = [] if value.__dict__.get("__doc__") else [name]
        for member, inside in vars(value).items():
            body = inside.fget if isinstance(inside, property) else inside
            if not member.startswith("_") and inspect.isroutine(body) and not inspect.getdoc(body):
                missing.append(f"{name}.{member}")
    return missing


def functions_of(name: str, value: object) -> Iterator[tuple[str, types.FunctionType]]:
    """A public function, or the public methods of a class, those of its bases of ours too."""
    if isinstance(value, types.FunctionType):
        yield name, value
    if not inspect.isclass(value):
        return
    for member in dir(value):
        method = inspect.getattr_static(value, member)
        method = getattr(method, "__func__", method)
        is_public = not member.startswith("_") or member == "__init__"
        if is_public and isinstance(method, types.FunctionType):
            yield f"{name}.{member}", method


def raised_by(function: types.FunctionType) -> list[str]:
    """What the statements of a function raise themselves."""
    todo: list[ast.AST] = [ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]]
    kinds = []
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                kinds.append(ast.unparse(node.exc.func))
            if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
                todo.append(node)
    return kinds


def silent(name: str, value: object) -> list[str]:
    """Functions of ours that raise, and whose docstrings do not say so."""
    return [
        called
        for called, function in functions_of(name, value)
        if function.__module__.startswith(("gradring", __name__))
        if not function.__code__.co_filename.startswith("<")  # As a dataclass's __init__.
        if "Raises:" not in (text := inspect.getdoc(function) or "")
        and not text.startswith("Raise ")
        if raised_by(function)
    ]


def test_every_public_name_has_a_docstring(public: dict[str, Any]) -> None:
    class Bare:
        def method(self) -> None: ...

    assert undocumented("Bare", Bare) == ["Bare", "Bare.method"]

    assert not [missing for name, value in public.items() for missing in undocumented(name, value)]


def test_every_public_function_that_raises_says_what(public: dict[str, Any]) -> None:
    class Test:
        def method(self) -> None:
            if self:
                raise ValueError("no")

    assert silent("Test", Test) == ["Test.method"]

    assert not [missing for name, value in public.items() for missing in silent(name, value)]


# In a process of its own, for examples begin and end worlds; torch's are left out without it.
DRIVER = """
import contextlib, doctest, importlib, sys
import gradring as gr
failed = 0
for name in sys.argv[1:]:
    failed += doctest.testmod(importlib.import_module(name)).failed
    with contextlib.suppress(gr.Error):
        gr.ps.current().close()  # The next one has servers of its own.
sys.exit(failed > 0)
"""


def test_examples_of_docstrings_say_what_comes_out(public: dict[str, Any]) -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    modules = [
        ".".join(path.with_suffix("").parts[1:])
        for path in code_files(("python",), {".py"})
        if ">>> " in (ROOT / path).read_text() and (has_torch or "torch" not in path.parts)
    ]
    assert len(modules) >= 10
    launched = ("GRADRING_", "OMPI_", "PMI_", "SLURM_", "PADDLE_", "TF_CONFIG", "RANK", "WORLD_")
    alone = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *modules], capture_output=True, text=True, timeout=60,
        env=alone, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_most_begin_with_has_an_example(public: dict[str, Any]) -> None:
    for name in [
        *EXAMPLED,
        *(["torch.distributed"] if "gradring.torch.distributed" in public else []),
    ]:
        value: Any = importlib.import_module("gradring")
        for part in name.split("."):
            value = getattr(value, part)
        assert ">>> " in (inspect.getdoc(value) or ""), name
