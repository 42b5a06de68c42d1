"""Reads the repository's own sources, for the tests in house/; others take ROOT from here.

Which files there are, what they include and import, how long their functions are: pure functions
of a text, so that tests can show each rule a text that breaks it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CODE_FOLDERS = ("csrc", "python", "tests", "bench", "examples", "tools", "cmake")
CPP = {".cc", ".h", ".cu", ".cuh"}
PYTHON = {".py", ".pyi"}
NOT_OURS = {".git", ".venv", ".hypothesis", "build", "dist", "out", "__pycache__"}


def code_files(
    folders: tuple[str, ...] = CODE_FOLDERS, suffixes: set[str] | None = None
) -> list[Path]:
    """Code under `folders`, relative to the root, sorted."""
    wanted = suffixes or (CPP | PYTHON)
    return sorted(
        path.relative_to(ROOT)
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in wanted and "__pycache__" not in path.parts
    )


def all_text_files() -> Iterator[tuple[Path, str]]:
    """Everything that is text, with its content; nothing that a build or a tool left behind."""
    for top in sorted(ROOT.iterdir()):
        if top.name in NOT_OURS or (top.is_dir() and top.name.endswith("_cache")):
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if not path.is_file() or NOT_OURS & set(path.relative_to(ROOT).parts):
                continue
            try:
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def includes(text: str) -> list[str]:
    """The headers of ours that a C++ text includes, in order."""
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, flags=re.MULTILINE)


@dataclass(frozen=True)
class Import:
    """One imported module; `is_lazy` inside a function or for type checkers only.

    `names` are what comes from it: none where the module itself is imported.
    """

    module: str
    is_lazy: bool
    names: tuple[str, ...] = ()


def python_imports(text: str) -> list[Import]:
    """Every absolute import of a Python text."""
    found: list[Import] = []

    def visit(node: ast.AST, is_lazy: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, is_lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = tuple(alias.name for alias in node.names)
            found.append(Import(node.module, is_lazy, names))
        inside = is_lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inside = True
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(text), is_lazy=False)
    return found


@dataclass(frozen=True)
class Function:
    """Where a function starts and how many lines of code it has."""

    name: str
    line: int
    line_count: int


def python_functions(text: str) -> list[Function]:
    """Functions of a Python text.

    Docstrings do not count: they are for readers of the call, not of the body.
    """
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        assert node.end_lineno is not None
        line_count = node.end_lineno - node.lineno + 1
        first = node.body[0]
        if ast.get_docstring(node, clean=False) is not None:
            assert first.end_lineno is not None
            line_count -= first.end_lineno - first.lineno + 1
        found.append(Function(node.name, node.lineno, line_count))
    return found


_CPP_NOISE = re.compile(
    r"""//[^\n]* | /\*.*?\*/            # comments
      | R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"  # raw strings
      | "(?:\\.|[^"\\\n])*"              # strings
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'  # characters, but not the ' in 1'000
      | ^[ \t]*\#(?:\\\n|[^\n])*         # preprocessor lines
    """,
    flags=re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_NOT_A_FUNCTION = re.compile(
    r"^\s*(?:template\s*<.*?>\s*)?(?:inline\s+)?(?:namespace|class|struct|union|enum|extern)\b",
    re.DOTALL,
)


def without_noise(text: str) -> str:
    """C++ without comments, strings and preprocessor lines, with the same line numbers."""
    return _CPP_NOISE.sub(lambda match: "\n" * match.group().count("\n"), text)


def _opens_function(head: str) -> bool:
    """Whether a brace after `head` begins a function: not a type, not an initialiser."""
    is_initialiser = head.rstrip().endswith("=")
    return "(" in head and not is_initialiser and not _NOT_A_FUNCTION.match(head)


def cpp_functions(text: str) -> list[Function]:
    """Functions of a C++ text, found by counting braces.

    A function is an outermost block whose head has a parameter list: good enough to see its length.
    A lambda or a loop counts into the function around it.
    """
    code = without_noise(text)
    found: list[Function] = []
    depth = 0
    function_depth: int | None = None  # The depth outside the function we are in.
    function_start = head_start = 0
    for position, letter in enumerate(code):
        if letter == "{":
            head = code[head_start:position]
            if function_depth is None and _opens_function(head):
                function_depth = depth
                function_start = position - len(head.lstrip())
            depth += 1
        elif letter == "}":
            depth -= 1
            if depth == function_depth:
                name = code[function_start:position].split("(")[0].split()[-1]
                first = code.count("\n", 0, function_start) + 1
                found.append(Function(name, first, code.count("\n", function_start, position) + 1))
                function_depth = None
        if letter in "{};":
            head_start = position + 1
    return found
