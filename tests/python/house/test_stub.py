"""The committed stub of the compiled module says what the module says: kinds and signatures."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types

from source_tree import ROOT

# A public name -> "class", "value", "property", "writable property", or a function's parameters
# with their defaults; "(...)" where the module does not say which.
Names = dict[str, str]


def signature_of(arguments: ast.arguments) -> str:
    """Names, defaults and what has to be named, as in `(a, b=3, *, c=None)`; no types."""
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        each.annotation = None
    return f"({ast.unparse(arguments)})"


def stub_names(text: str) -> Names:
    """Public names of a stub, classes' members included."""
    found: Names = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[prefix + node.name] = "class"
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                marks = [ast.unparse(mark) for mark in node.decorator_list]
                kind = "static " if "staticmethod" in marks else ""
                found[prefix + node.name] = (
                    "property" if "property" in marks
                    else "writable property" if f"{node.name}.setter" in marks
                    else kind + signature_of(node.args)
                )  # fmt: skip
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[prefix + node.target.id] = "value"

    visit(ast.parse(text).body, "")
    return {name: value for name, value in found.items() if is_public(name)}


def is_public(name: str) -> bool:
    last = name.rsplit(".", maxsplit=1)[-1]
    return last == "__init__" or not last.startswith("_")


def runtime_kind(value: object) -> str:
    """What a member of the module is; a signature is in the first line that pybind11 documents."""
    if inspect.isclass(value):
        return "class"
    if isinstance(value, property):
        return "property" if value.fset is None else "writable property"
    kind, bare = ("static ", value.__func__) if isinstance(value, staticmethod) else ("", value)
    if not callable(bare):
        return "value"
    first = (bare.__doc__ or "").splitlines()[:1]
    match = re.match(r"\w+\((.*)\)(?: -> .*)?$", first[0]) if first else None
    if match is None or "*args" in match[1]:
        return f"{kind}(...)"
    said = ast.parse(f"def f({re.sub(r'<[^>]*>', '...', match[1])}): ...").body[0]
    assert isinstance(said, ast.FunctionDef)
    return kind + signature_of(said.args)


def runtime_names(holder: object, prefix: str = "") -> Names:
    """The same of the compiled module itself."""
    found: Names = {}
    for name, value in vars(holder).items():
        if not is_public(name) or isinstance(value, types.ModuleType):
            continue
        if name == "__init__" and not (value.__doc__ or "").startswith("__init__("):
            continue  # Python's own: the class has no constructor of ours.
        found[prefix + name] = runtime_kind(value)
        if inspect.isclass(value) and value.__module__ == "gradring._core":
            found |= runtime_names(value, f"{prefix}{name}.")
    return found


def agree(said: str, is_so: str) -> bool:
    """Whether the stub's words for a name are the module's, as far as the module says."""
    return said.startswith(is_so.removesuffix("...)")) if "(...)" in is_so else said == is_so


def stub_complaints(stub: Names, runtime: Names) -> list[str]:
    """Where the stub and the module disagree."""
    complaints = [f"the stub lacks {name}" for name in sorted(runtime.keys() - stub.keys())]
    complaints += [f"the module lacks {name}" for name in sorted(stub.keys() - runtime.keys())]
    complaints += [
        f"{name} is {runtime[name]}, the stub says {stub[name]}"
        for name in sorted(runtime.keys() & stub.keys())
        if not agree(stub[name], runtime[name])
    ]
    return complaints


def test_the_stub_of_the_compiled_module_is_up_to_date() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    add.__doc__ = "add(a: int, b: int = 3) -> int\n\nAdd."
    runtime = runtime_names(types.SimpleNamespace(add=add))
    assert not stub_complaints(stub_names("def add(a: int, b: int = 3) -> int: ..."), runtime)
    for wrong in (
        "def add(a: int) -> int: ...",
        "def sub(a: int, b: int = 3) -> int: ...",
        "def add(a: int, b: int = 3) -> int: ...\nx: int",
        "def add(a: int, b: int = 4) -> int: ...",
        "def add(a: int, b: int) -> int: ...",
        "def add(a: int, *, b: int = 3) -> int: ...",
        "@property\ndef add(a: int, b: int = 3) -> int: ...",
    ):
        assert stub_complaints(stub_names(wrong), runtime), wrong
    add.__doc__ = "add(*args, **kwargs)\nOverloaded function."
    assert not stub_complaints(stub_names("def add(a: int) -> int: ..."), runtime_names(
        types.SimpleNamespace(add=add)
    ))  # fmt: skip

    core = importlib.import_module("gradring._core")
    stub = (ROOT / "python" / "gradring" / "_core.pyi").read_text()
    assert not stub_complaints(stub_names(stub), runtime_names(core)), "mend _core.pyi"
