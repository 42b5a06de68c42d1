"""tools/setup.sh asks for the Python that what it pins needs, before it installs anything."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from source_tree import ROOT

SETUP = ROOT / "tools" / "setup.sh"


def script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)


@pytest.mark.parametrize("profile", ["demo", "test"])
def test_an_older_python_is_refused_with_what_to_do(profile: str, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(SETUP, tmp_path / "tools")
    for name in ("apt-get", "sudo"):
        script(tmp_path / name, f"touch {tmp_path}/asked", "exit 1")
    script(tmp_path / "old", '[ "$1" = --version ] && echo Python 3.10.12 || exit 1')
    done = subprocess.run(
        [tmp_path / "tools" / "setup.sh", profile], capture_output=True, text=True, timeout=60,
        check=False, env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHON": str(tmp_path / "old")},
    )  # fmt: skip
    assert done.returncode == 1
    assert "old is Python 3.10.12" in done.stderr
    assert "needs Python 3.11 or newer" in done.stderr
    assert f"PYTHON=python3.12 make {profile}" in done.stderr
    assert not (tmp_path / "asked").exists()
    assert not (tmp_path / ".venv").exists()


def test_every_pinned_package_runs_on_the_python_that_is_asked_for() -> None:
    packaging = pytest.importorskip("packaging.specifiers", reason="packaging is not installed")
    found = re.search(r"sys\.version_info < \((\d+), (\d+)\)", SETUP.read_text())
    assert found is not None
    least = f"{found[1]}.{found[2]}"
    texts = [path.read_text() for path in SETUP.parent.glob("requirements-*.txt")]
    needs = {}
    for name, version in re.findall(r"^([\w-]+)==(\S+)$", "\n".join(texts), re.MULTILINE):
        try:
            installed = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        if installed["Version"].partition("+")[0] == version:
            needs[name] = packaging.SpecifierSet(installed.get("Requires-Python") or "")
    assert "numpy" in needs
    assert not {name: str(need) for name, need in needs.items() if not need.contains(least)}
    assert not needs["numpy"].contains("3.10")  # Else it may ask for less.
