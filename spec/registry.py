"""Which profiles there are: the suite's own, and those of files and packages that were asked for.

A process says once, before it asks for the first profile, where else there are profiles: `choose`.
Without that there are the suite's own. What is remembered about profiles by name is remembered for
one such choice, see `remembered`.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Final, ParamSpec, TypeVar

from qkvac.spec import attention
from qkvac.spec.grammar.syntax import SpecError
from qkvac.spec.profile import Profile

GROUP: Final = "qkvac.profiles"
"""The entry points under which a package registers modules that declare profiles."""


@dataclass(frozen=True)
class Source:
    """A file or a module that declares profiles of somebody's own."""

    name: str
    """The path of a Python file, or the name of a module."""
    digest: str
    """SHA-256 of its bytes, by which a record says what was declared."""
    profiles: tuple[Profile, ...]

    @property
    def is_file(self) -> bool:
        """Whether it is a file, and no module."""
        return self.name.endswith(".py")

    @property
    def has_changed(self) -> bool:
        """Whether it is a file that holds something else by now, or is gone."""
        if not self.is_file:
            return False
        try:
            return hashlib.sha256(Path(self.name).read_bytes()).hexdigest() != self.digest
        except OSError:
            return True


@dataclass(frozen=True, eq=False)
class Choice:
    """The profiles of a run, by name."""

    sources: tuple[Source, ...] = ()

    @cached_property
    def forward(self) -> Mapping[str, Profile]:
        """Profiles that compute no gradients; the suite's own come first."""
        every = [*declared_in(attention), *(p for s in self.sources for p in s.profiles)]
        return MappingProxyType({profile.name: profile for profile in every})

    @cached_property
    def gradients(self) -> Mapping[str, Profile]:
        """Those of the gradients of all others."""
        every = (profile.gradients for profile in self.forward.values())
        return MappingProxyType({profile.name: profile for profile in every})

    @cached_property
    def every(self) -> Mapping[str, Profile]:
        """Every profile, those of gradients last."""
        return MappingProxyType({**self.forward, **self.gradients})


_chosen: Choice = Choice()


def choose(names: Iterable[str | Path] = ()) -> Choice:
    """Adds the profiles of files (paths ending in .py) and modules to the suite's own.

    It replaces an earlier choice. Raises SpecError, with the place, for a file that cannot be run,
    declares nothing, or takes a name that is taken; whether what it declares makes sense is shown
    by `qkvac.spec.validation`.
    """
    global _chosen
    sources = tuple(dict.fromkeys(str(name) for name in names))
    if sources == tuple(source.name for source in _chosen.sources if not source.has_changed):
        return _chosen
    taken = {profile.name: "qkvac itself" for profile in declared_in(attention)}
    found = []
    for name in sources:
        source = _read(name)
        for profile in source.profiles:
            for each in (profile.name, f"{profile.name}_gradients"):
                if each in taken:
                    raise SpecError(f"{name}: the name {each!r} is taken by {taken[each]}")
            taken[profile.name] = taken[f"{profile.name}_gradients"] = name
        found.append(source)
    _chosen = Choice(tuple(found))
    return _chosen


def recall(source: Source) -> None:
    """Adds profiles as a record tells them, which are shown and not run.

    Raises SpecError where another profile of the same name has other equations.
    """
    global _chosen
    for profile in source.profiles:
        known = _chosen.every.get(profile.name)
        if known is not None and dict(known.texts) != dict(profile.texts):
            raise SpecError(f"{profile.name} has other equations than the profile known here")
    new = tuple(p for p in source.profiles if p.name not in _chosen.every)
    if new:
        _chosen = Choice((*_chosen.sources, Source(source.name, source.digest, new)))


def chosen() -> Choice:
    """The profiles that this process knows."""
    return _chosen


def forward_profiles() -> Mapping[str, Profile]:
    """Profiles that compute no gradients, by name; the suite's own come first."""
    return _chosen.forward


def gradient_profiles() -> Mapping[str, Profile]:
    """Profiles of gradients, by name."""
    return _chosen.gradients


def usual_profile() -> str:
    """The profile that is meant where none is named: the first of the last file, or our own.

    What packages declare is there without being asked for, and changes nothing about that.
    """
    files = [source.profiles for source in _chosen.sources if source.is_file]
    return (files[-1] if files else declared_in(attention))[0].name


def option_for(profile: str) -> tuple[str, ...]:
    """Words of a command line that make a profile known: of a file that declares it."""
    source = source_of(profile)
    return ("--spec", source.name) if source is not None and source.is_file else ()


def sources() -> list[str]:
    """What another process has to choose, in whatever folder it runs, to know the same profiles."""
    return [
        str(Path(source.name).resolve()) if source.is_file else source.name
        for source in _chosen.sources
    ]


def source_of(profile: str) -> Source | None:
    """Where a profile, or the one whose gradients it is, was declared; None for one of ours."""
    for source in _chosen.sources:
        for declared in source.profiles:
            if profile in (declared.name, declared.gradients.name):
                return source
    return None


def digests(profiles: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the texts of profiles, of those among them that are not the suite's own."""
    own = [name for name in sorted(set(profiles)) if source_of(name) is not None]
    texts = {name: repr(sorted(_chosen.every[name].texts.items())) for name in own}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def known_profiles() -> Mapping[str, Profile]:
    """Every profile by name, those of gradients last."""
    return _chosen.every


def declared_in(module: ModuleType) -> tuple[Profile, ...]:
    """The profiles of a module: those with a name of their own, and those listed in PROFILES."""
    values = [*vars(module).values(), *getattr(module, "PROFILES", ())]
    return tuple(dict.fromkeys(value for value in values if isinstance(value, Profile)))


def _read(name: str) -> Source:
    if name.endswith(".py"):
        path = Path(name)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SpecError(f"{name} cannot be read: {error.strerror}") from None
        module = ModuleType(path.stem)
        module.__file__ = name
        _run(name, lambda: exec(compile(content, name, "exec"), module.__dict__))
    else:
        module = _run(name, lambda: importlib.import_module(name))
        file = getattr(module, "__file__", None)
        content = Path(file).read_bytes() if file else b""
    profiles = declared_in(module)
    if not profiles:
        raise SpecError(f"{name} declares no profile: it makes no `Profile` of qkvac.spec")
    return Source(name, hashlib.sha256(content).hexdigest(), profiles)


_R = TypeVar("_R")


def _run(name: str, action: Callable[[], _R]) -> _R:
    """Runs a file that declares profiles; whatever it raises is one line with its place.

    What it prints goes to stderr: stdout is for what was asked for.
    """
    try:
        with redirect_stdout(sys.stderr):
            return action()
    except SyntaxError as error:
        text = (error.text or "").rstrip("\n")
        caret = f"\n    {' ' * max((error.offset or 1) - 1, 0)}^"
        shown = f"\n    {text}{caret}" if text else ""
        place = f", line {error.lineno}" if error.lineno else ""
        raise SpecError(f"{name}{place}: {error.msg}{shown}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        trace, line = error.__traceback__, 0
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == name else line
            trace = trace.tb_next
        place = f", line {line}" if line else ""
        what = str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {error}"
        raise SpecError(f"{name}{place}: {what}") from error


_P = ParamSpec("_P")


def remembered(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Remembers what a function of hashable arguments returns, for one choice of profiles."""
    results: dict[Hashable, _R] = {}
    of = list[Choice]()

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if of != [_chosen]:
            results.clear()
            of[:] = [_chosen]
        key = (args, tuple(sorted(kwargs.items())))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return call
