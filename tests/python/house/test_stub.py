"""The committed stub of the compiled module says what the module says: names and parameters."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types

from source_tree import ROOT

Names = dict[str, list[str] | None]  # A public name -> its parameters, where they can be told.


def stub_names(text: str) -> Names:
    """Public names of a stub, classes' members included, with a function's parameters."""
    found: Names = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = None
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                found[prefix + node.name] = [argument.arg for argument in arguments]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[prefix + node.target.id] = None

    visit(ast.parse(text).body, "")
    return {name: value for name, value in found.items() if is_public(name)}


def is_public(name: str) -> bool:
    last = name.rsplit(".", maxsplit=1)[-1]
    return last == "__init__" or not last.startswith("_")


def runtime_parameters(value: object) -> list[str] | None:
    """The parameters pybind11 prints in a docstring's first line; None for anything overloaded."""
    first = (getattr(value, "__doc__", None) or "").splitlines()[:1]
    match = re.match(r"\w+\((.*)\)(?: -> .*)?$", first[0]) if first and callable(value) else None
    if match is None or inspect.isclass(value) or "*args" in match[1]:
        return None
    signature = ast.parse(f"def f({re.sub(r'<[^>]*>', '...', match[1])}): ...").body[0]
    assert isinstance(signature, ast.FunctionDef)
    arguments = signature.args.posonlyargs + signature.args.args + signature.args.kwonlyargs
    return [argument.arg for argument in arguments]


def runtime_names(holder: object, prefix: str = "") -> Names:
    """The same of the compiled module itself."""
    found: Names = {}
    for name, value in vars(holder).items():
        if not is_public(name) or isinstance(value, types.ModuleType):
            continue
        if name == "__init__" and not (value.__doc__ or "").startswith("__init__("):
            continue  # Python's own: the class has no constructor of ours.
        bare = value.__func__ if isinstance(value, staticmethod) else value
        found[prefix + name] = runtime_parameters(bare)
        if inspect.isclass(value) and value.__module__ == "gradring._core":
            found |= runtime_names(value, f"{prefix}{name}.")
    return found


def stub_complaints(stub: Names, runtime: Names) -> list[str]:
    """Where the stub and the module disagree."""
    complaints = [f"the stub lacks {name}" for name in sorted(runtime.keys() - stub.keys())]
    complaints += [f"the module lacks {name}" for name in sorted(stub.keys() - runtime.keys())]
    complaints += [
        f"{name} takes {runtime[name]}, the stub says {stub[name]}"
        for name in sorted(runtime.keys() & stub.keys())
        if runtime[name] is not None and stub[name] is not None and runtime[name] != stub[name]
    ]
    return complaints


def test_the_stub_of_the_compiled_module_is_up_to_date() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    add.__doc__ = "add(a: int, b: int = 3) -> int\n\nAdd."
    runtime = runtime_names(types.SimpleNamespace(add=add))
    assert not stub_complaints(stub_names("def add(a: int, b: int = ...) -> int: ..."), runtime)
    assert stub_complaints(stub_names("def add(a: int) -> int: ..."), runtime)
    assert stub_complaints(stub_names("def sub(a: int) -> int: ..."), runtime)
    assert stub_complaints(stub_names("def add(a: int, b: int) -> int: ...\nx: int"), runtime)

    core = importlib.import_module("gradring._core")
    stub = (ROOT / "python" / "gradring" / "_core.pyi").read_text()
    assert not stub_complaints(stub_names(stub), runtime_names(core)), "mend _core.pyi"
