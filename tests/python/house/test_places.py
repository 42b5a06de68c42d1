"""Where files lie: texts name them by where they are, and tests import what lies near.

Each rule is a function, as in test_house.py: it is shown something that breaks it, then the tree.
"""

from __future__ import annotations

import re
from pathlib import Path

from source_tree import ROOT, all_text_files, code_files, python_imports

RIGS = Path("tests/python/rigs")  # What tests of several rooms are driven with.


def missing_files(text: str) -> list[str]:
    """Files that `text` names by their path in the repository, and that are not there."""
    top = "bench|cmake|csrc|docs|examples|python|tests|tools"
    named = rf"(?<![\w/.*}}$-])(?:{top})/[a-z0-9_./-]+\.(?:cc|cuh?|h|md|pyi?|sh)\b"
    return [name for name in re.findall(named, text) if not (ROOT / name).is_file()]


def neighbour_complaints(path: Path, text: str, homes: dict[str, Path]) -> list[str]:
    """Imports of `text`, of the Python tests, from rooms that Python does not look into for it.

    It does once another room's tests have been imported: alone the file would fail.
    """
    near = {path.parent, RIGS, RIGS.parent}
    return [
        f"{path} imports {found.module}, which lies in {homes[found.module]}"
        for found in python_imports(text)
        if homes.get(found.module, RIGS) not in near
    ]


def test_every_file_that_a_text_names_is_there() -> None:
    assert missing_files("(tests/python/none.py has them all)") == ["tests/python/none.py"]
    assert not missing_files("see csrc/base/error.h:12, examples/NAME.py, build/docs/none.md")

    house = Path(__file__).relative_to(ROOT).parent  # It names some to show what the rules say.
    assert not [
        f"{path} names {name}"
        for path, text in all_text_files()
        if path.parent != house
        for name in missing_files(text)
    ]


def test_a_file_of_python_tests_runs_alone() -> None:
    homes = {"turns": Path("tests/python/modes/geo"), "ranks": RIGS}
    path = Path("tests/python/ps/test_x.py")
    assert neighbour_complaints(path, "from turns import Turns", homes)
    assert not neighbour_complaints(path, "import ranks\nimport json", homes)

    files = code_files(("tests/python",), {".py"})
    homes = {path.stem: path.parent for path in files}
    assert len(homes) == len(files)  # No two of one name: Python would take either for the other.
    assert not [
        complaint
        for path in files
        for complaint in neighbour_complaints(path, (ROOT / path).read_text(), homes)
    ]


IDEAS_TO_STOP = 20  # In one folder; a header and its source are one.
LARGE_ROOMS = {  # Folder -> why it has more.
    "csrc/base": "what all rooms stand on: small things that do not know each other",
    "csrc/kernels": "kinds of arithmetic, each for several instruction sets",
}


def size_complaints(paths: list[Path], large: set[str]) -> list[str]:
    """Folders of which nobody sees any more what is in them, but for those in `large`."""
    ideas: dict[str, set[str]] = {}
    for path in paths:
        ideas.setdefault(path.parent.as_posix(), set()).add(path.stem)
    return [
        f"{folder} has {len(names)} ideas, more than {IDEAS_TO_STOP}: give one a folder"
        for folder, names in ideas.items()
        if len(names) > IDEAS_TO_STOP and folder not in large
    ]


def test_folders_stay_small() -> None:
    few = [
        Path(f"csrc/x/idea{i}{suffix}") for i in range(IDEAS_TO_STOP) for suffix in (".cc", ".h")
    ]
    many = [*few, Path("csrc/x/another.h")]
    assert not size_complaints(few, set())
    assert size_complaints(many, set())
    assert not size_complaints(many, {"csrc/x"})

    assert not size_complaints(code_files(), set(LARGE_ROOMS))
    # Those with a reason are still large.
    assert len(size_complaints(code_files(), set())) == len(LARGE_ROOMS)


def unknown_extras(text: str) -> set[str]:
    """Extras that `text` says are to be installed, and that pyproject.toml does not have."""
    table = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    there = set(re.findall(r"^(\w+) = ", table.partition("\n[")[0], re.MULTILINE))
    return set(re.findall(r"gradring\[(\w+)\]", text)) - there


def test_every_extra_that_a_text_names_can_be_installed() -> None:
    assert unknown_extras("pip install 'gradring[" + "tourch]'") == {"tourch"}
    assert not unknown_extras("pip install 'gradring[torch]' gradring[cupy13]")

    assert not {
        path: unknown for path, text in all_text_files() if (unknown := unknown_extras(text))
    }
