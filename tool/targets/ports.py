"""Ports in Python: where they are, which functions they offer, and why they cannot be loaded.

A port is imported in a worker process only. Every way in which that can fail is one line for the
user, because a port that does not load is the first thing that anyone who writes one will see.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Final

from qkvac.spec.profile import Profile
from qkvac.spec.registry import forward_profiles, known_profiles, remembered
from qkvac.targets.arrays import first_line


@dataclass(frozen=True)
class Function:
    """The signature of a function that a port may offer, and what it returns, in order."""

    name: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    returns: tuple[str, ...]
    optional: tuple[str, ...]
    """Intermediates that a dict may hold besides."""
    masks: frozenset[str] = frozenset()
    """Keywords whose gradients come last where they are added to scores."""

    @classmethod
    def of(cls, profile: Profile) -> Function:
        """The function that a profile declares."""
        masks = profile.masks if profile.of is not None else frozenset[str]()
        added = tuple(f"d{name}" for name in sorted(masks))
        return cls(
            profile.name,
            tuple(profile.takes),
            tuple(profile.keywords),
            tuple(profile.returns),
            (*profile.reports, *added),
            masks,
        )

    def returned(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """What a call returns; the gradient of a mask comes last where one is added to scores."""
        given = {name: arguments.get(name) for name in sorted(self.masks)}
        added = [f"d{n}" for n, mask in given.items() if mask is not None and mask.dtype != bool]
        return (*self.returns, *added)


@remembered
def known_functions() -> Mapping[str, Function]:
    """The functions of all profiles, by name."""
    return MappingProxyType({p.name: Function.of(p) for p in known_profiles().values()})


FRAMEWORKS: Final = frozenset(
    {"torch", "jax", "tensorflow", "keras", "flax", "numpy", "mlx", "xformers", "flash_attn"}
)
"""Packages whose functions of the same names a port may import for its own use."""


class PortError(Exception):
    """A port that cannot be loaded or offers nothing known; the message is one line."""


@dataclass(frozen=True)
class Port:
    """A loaded port: its functions by profile, and its raw declaration."""

    functions: Mapping[str, Callable[..., Any]]
    declaration: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    """Names that look like a misspelt function."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Distributions that run it, besides those that every process reports."""


def load(text: str) -> Port:
    """Imports `file.py` or `package.module`; raises PortError.

    After a colon may stand what is meant of it: an object that has the functions, a class that is
    made without arguments, or a single function. The folder of a file, or the current folder for
    a module, comes first in `sys.path`, as for `python file.py` and `python -m package.module`.
    """
    place, within = split(text)
    module = _module(place)
    return _select(text, module, within) if within else inspect(text, module)


def split(text: str) -> tuple[str, str]:
    """A port's file or module, and the name after its colon, "" if there is none."""
    found = re.fullmatch(r"(.+):([^\W\d][\w.]*)", text)
    return (found[1], found[2]) if found and not Path(text).is_file() else (text, "")


def _module(text: str) -> ModuleType:
    if text.endswith(".py") or os.sep in text or Path(text).is_file():
        return _import(text, _file_importer(text))
    if all(part.isidentifier() for part in text.split(".")):
        sys.path.insert(0, os.getcwd())
        sys.argv = [text]
        return _import(text, lambda: importlib.import_module(text))
    raise PortError(f"{text} is neither a file nor the name of a module")


def _select(text: str, module: ModuleType, within: str) -> Port:
    """The port that a name within a module stands for."""
    value: Any = module
    path = split(text)[0]
    for name in within.split("."):
        if (inner := _attribute(value, name)) is None:
            near = difflib.get_close_matches(name, dir(value), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise PortError(f"{path} has no {name!r}{hint}")
        value, path = inner, f"{path}.{name}"
    if isinstance(value, type):
        try:
            value = value()
        except BaseException as error:
            raise PortError(
                f"{text}() cannot be made: {first_line(error)}{_where(error)}"
            ) from None
    profile = next((n for n in (_own_name(value), name) if n in known_functions()), "")
    offers = any(callable(_attribute(value, function)) for function in known_functions())
    if callable(value) and profile and not offers:
        return Port({profile: value}, declared_by(text, module))
    if isinstance(value, FunctionType) and not offers:
        raise PortError(
            f"{text} is a function of no known name; call it attention, or one of "
            f"{', '.join(forward_profiles())}"
        )
    return inspect(text, value, module)


def _own_name(value: object) -> str:
    return str(getattr(value, "__name__", ""))


def _file_importer(text: str) -> Callable[[], ModuleType]:
    path = Path(text)
    if not path.exists():
        folder = path.parent
        files = sorted(p.name for p in folder.glob("*.py")) if folder.is_dir() else []
        near = difflib.get_close_matches(path.name, files, n=1)
        hint = f"; did you mean {folder / near[0]}?" if near else ""
        raise PortError(f"{text}: no such file{hint}")
    if not path.is_file():
        raise PortError(f"{text} is a folder, not a Python file")
    path = path.resolve()
    name = path.stem
    if not name.isidentifier() or name in sys.modules or name in sys.stdlib_module_names:
        name = f"port_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise PortError(
            f"{text} is not a Python file; a program stands after --: qkvac check -- {text}"
        )
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]

    def run() -> ModuleType:
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        # Compiled here and not by the loader, whose cached bytecode outlives an edit that keeps
        # the file's size and falls into the same second.
        exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
        return module

    return run


def _import(text: str, importer: Callable[[], ModuleType]) -> ModuleType:
    try:
        return importer()
    except SyntaxError as error:
        line = (error.text or "").strip()
        where = Path(error.filename).name if error.filename else text
        raise PortError(
            f"{text} cannot be imported: {where}, line {error.lineno}: {error.msg}"
            + (f": {line[:120]}" if line else "")
        ) from error
    except SystemExit as error:
        raise PortError(f"{text} calls sys.exit({error.code!r}) when it is imported") from error
    except BaseException as error:
        raise PortError(f"{text} cannot be imported: {first_line(error)}{_where(error)}") from error


def _where(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _is_users(filename: str) -> bool:
    return (
        not filename.startswith("<")
        and Path(filename).parent != Path(__file__).parent
        and not filename.startswith(str(Path(os.__file__).parent))
    )


def inspect(text: str, holder: object, module: object = None) -> Port:
    """What a module, or another object that has the functions, offers; raises PortError.

    Where the object declares nothing, its module does.
    """
    names = set(dir(holder))
    functions = {}
    notes = []
    for name in known_functions():
        value = _attribute(holder, name)
        if value is None or _is_frameworks(value):
            continue
        if callable(value):
            functions[name] = value
        else:
            notes.append(f"`{name}` is of type {type(value).__name__}, not a function")
    for name in sorted(names - known_functions().keys()):
        value = None if name.startswith("__") else _attribute(holder, name)
        if not callable(value) or _is_frameworks(value):
            continue
        inside = [n for n in known_functions() if callable(getattr(value, n, None))]
        near = _near(name)
        if isinstance(value, type) and inside and not functions:
            notes.append(f"class `{name}` has `{inside[0]}`, check {text}:{name}")
        elif near and near not in functions:
            notes.append(f"found `{name}`, did you mean `{near}`?")
    if not functions:
        hint = f": {'; '.join(notes)}" if notes else ""
        raise PortError(
            f"{text} offers no function of a known name{hint} "
            f"(looked for {', '.join(forward_profiles())}, "
            "and each with _gradients)"
        )
    return Port(functions, declared_by(text, holder, module), tuple(notes))


def _near(name: str) -> str:
    """The function that a name may be meant for: by its words, its short name, or its letters."""
    words = name.lower().split("_")
    parts = [known for known in known_functions() if {*known.split("_")} <= {*words}]
    if parts:
        return max(parts, key=len)
    near = nicknamed(name.lower())
    near = near or difflib.get_close_matches(name, known_functions(), n=1, cutoff=0.8)
    return near[0] if near else ""


def nicknamed(word: str) -> list[str]:
    """The profile that a short name, or the first letters of its words, stands for: sdpa, mha."""
    return [
        profile.name
        for profile in known_profiles().values()
        if word in (profile.short, "".join(part[0] for part in profile.name.split("_")))
    ][:1]


def declared_by(text: str, *holders: object) -> Mapping[str, Any]:
    """The declaration of the first holder that has one, as plain values; raises PortError."""
    found = (_attribute(holder, "QKVAC") for holder in holders if holder is not None)
    declared = next((table for table in found if table is not None), None)
    if declared is None:
        return {}
    if not isinstance(declared, dict):
        raise PortError(f"{text}: QKVAC is of type {type(declared).__name__}; it has to be a dict")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(declared, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise PortError(
            f"{text}: QKVAC may hold strings, numbers, booleans, lists and dicts: "
            f"{first_line(error)}"
        ) from error
    return plain


def _attribute(holder: object, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception as error:
        raise PortError(f"reading `{name}` of the port fails: {first_line(error)}") from error


def _is_frameworks(value: object) -> bool:
    """Whether a function was written in a framework; compiled objects of the port's own are not.

    An object whose `__module__` is only its class's says nothing about who wrote the function.
    """
    origin = getattr(value, "__module__", None)
    if not isinstance(origin, str) or origin == type(value).__module__:
        return False
    return origin.partition(".")[0] in FRAMEWORKS
