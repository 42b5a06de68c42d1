"""How processes of ours are started: by modules of this package, whatever the folder holds.

`python -m` looks into the working directory first: a `types.py` or `random.py` there would be taken
for the standard library's.
"""

from __future__ import annotations

import sys

# The working directory goes to the end of the path. No single quotes: it may pass a shell.
_START = (
    'import sys; path = sys.path; path[:1] == [""] and path.append(path.pop(0)); import runpy; '
    'runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)'
)


def module_command(module: str, *arguments: str, python: str | None = None) -> tuple[str, ...]:
    """Return the command that runs a module of ours as `python -m` would.

    Args:
        module: As ``gradring.launch.agent``, or a package with a ``__main__``.
        arguments: For the module.
        python: The interpreter; ``None`` is this one.
    """
    return (python or sys.executable, "-c", _START, module, *arguments)
