"""Where the suite's own processes import from: from what is installed, not from what lies about.

A judge that took `token` or `copy` from the current folder, from that of a port or from PYTHONPATH
would belong to whoever wrote them. The command line drops its first place in `sys.path` and looks
in PYTHONPATH last; the processes that it starts begin without either, and only that of a port is
given them, once it has imported all of its own.

What runs before that has been done imports nothing but what Python has loaded: this module does
without `from __future__`.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NEEDED = ("qkvac", "numpy", "ml_dtypes", "flint")
"""Packages without which no process of the suite works."""
PLACES = "PYTHONPATH"

BOOT = """\
import sys
sys.path[:] = filter(None, sys.path)
import importlib, importlib.util, json
module, header = sys.argv[1], json.loads(sys.argv[2])
for name, home in header["homes"].items():
    if importlib.util.find_spec(name) is None:
        sys.path.append(home)
importlib.import_module(module).main(**header["settings"])
"""
"""What a started process runs first: `-c` has put the current folder into its path."""


def narrow() -> None:
    """Has the calling process, that of the command line, import what is installed before all else.

    What it was started from, the current folder or that of a script, is dropped, or comes last
    where the suite itself is there; places in PYTHONPATH come last.
    """
    given = [] if sys.flags.ignore_environment else places(os.environ.get(PLACES, ""))
    first = [] if getattr(sys.flags, "safe_path", sys.flags.isolated) else sys.path[:1]
    others = sys.path[len(first) :]
    late = [place for place in others if place in given]
    late += [place for place in first if os.path.abspath(place) == _home(__file__, "qkvac")]
    sys.path[:] = [place for place in others if place not in given]
    if late:
        _refuse_missing()
        sys.path += late


def _refuse_missing() -> None:
    """Has the import of what the standard library lacks on this system, such as msvcrt, fail."""
    from importlib.util import find_spec

    for name in sys.stdlib_module_names:
        if name not in sys.modules and find_spec(name) is None:
            sys.modules[name] = None  # type: ignore[assignment]


def places(text: str) -> list[str]:
    """The folders that a value of PYTHONPATH names."""
    return [os.path.abspath(place) for place in text.split(os.pathsep)] if text else []


def give(text: str) -> None:
    """Gives the calling process, that of a port, a value of PYTHONPATH as if it had begun so."""
    if text:
        os.environ[PLACES] = text
        sys.path[:0] = [place for place in places(text) if place not in sys.path]


def command(module: str, *flags: str, **settings: object) -> list[str]:
    """The words that start `module.main(**settings)` of the suite in a process of its own.

    `settings` are JSON. The process needs an environment `without_places`.
    """
    import json

    header = json.dumps({"homes": homes(), "settings": settings})
    return [sys.executable, *flags, "-c", BOOT, module, header]


def without_places(environment: "Mapping[str, str]") -> dict[str, str]:
    """An environment without PYTHONPATH."""
    return {name: value for name, value in environment.items() if name != PLACES}


def homes() -> dict[str, str]:
    """By name of a needed package, the folder that it was found in; for where none is installed."""
    from importlib.util import find_spec

    specs = {name: find_spec(name) for name in NEEDED}
    found = {name: _home(spec.origin or "", name) for name, spec in specs.items() if spec}
    return {name: home for name, home in found.items() if home}


def _home(file: str, name: str) -> str:
    """The folder that holds the package of a file; "" where the package's folder has no such name.

    Then an importer of its own knows where the package is.
    """
    folder = os.path.dirname(os.path.abspath(file))
    return os.path.dirname(folder) if os.path.basename(folder) == name else ""
