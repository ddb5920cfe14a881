"""Whether the declaration of a profile makes sense: text, signature and roles agree.

The suite's own profiles are shown to by its tests, those of a user before anything runs. Every
error names the profile, and the line of the text where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from qkvac.spec import shapes
from qkvac.spec.profile import PLAIN, Flag, Mask, Parameter, Profile, Size
from qkvac.spec.registry import Source
from qkvac.spec.syntax import Expr, Program, Ref, SpecError, walk

ROOM: Final = 1 + 2.0**-40
"""For the roundings of a difference of two enclosures."""
_LINE = re.compile(r"^spec line \d+: ")


def check(source: Source) -> None:
    """Raises SpecError, naming the place in the file, for the first thing that is wrong."""
    try:
        text = Path(source.name).read_text(encoding="utf-8") if source.is_file else ""
    except (OSError, ValueError):
        text = ""
    for profile in source.profiles:
        try:
            problem = next(problems(profile), None)
        except SpecError as error:
            problem = str(error)
        except shapes.ShapeError as error:
            problem = str(error)
        except RecursionError:
            problem = "an equation is nested too deeply"
        except Exception as error:  # what a text function of the user's raises
            problem = f"its text cannot be made: {type(error).__name__}: {error}"
        if problem is not None:
            raise SpecError(f"{source.name}{_place(text, problem)}: {_named(profile, problem)}")


def _named(profile: Profile, problem: str) -> str:
    """The problem with the name of its profile, which it may have already."""
    plain = _LINE.sub("", problem)
    return plain if plain.startswith(f"{profile.name}:") else f"{profile.name}: {plain}"


def _place(text: str, problem: str) -> str:
    """The line of the file on which what a problem shows, or begins with, stands."""
    first, *shown = problem.split("\n")
    wanted = shown[0].strip() if shown else first.partition(": ")[0]
    lines = [line.strip() for line in text.splitlines()]
    return f", line {lines.index(wanted) + 1}" if wanted and wanted in lines else ""


def problems(profile: Profile) -> Iterator[str]:
    """What is wrong with a declaration, the most telling first; raises SpecError and ShapeError."""
    if not profile.name.isidentifier() or profile.name.endswith("_gradients"):
        yield f"{profile.name!r} is no name for a function whose gradients are …_gradients"
    if not profile.returns:
        yield "it returns nothing: name the quantities that its function returns"
    for variant in profile.texts:
        for program in profile.equivalents(variant):
            where = "" if variant == PLAIN else f" ({variant})"
            yield from (f"{problem}{where}" for problem in _of_program(profile, variant, program))
    yield from _of_names(profile)
    if profile.alternatives:
        yield from _of_alternatives(profile)
    for variant in profile.texts:
        for program in (*profile.equivalents(variant), *profile.gradients.equivalents(variant)):
            shapes.check(program)


def _of_program(profile: Profile, variant: str, program: Program) -> Iterator[str]:
    """Where a text and the signature disagree."""
    inputs = {tensor.name: tensor for tensor in program.inputs}
    chosen = set() if variant == PLAIN else set(variant.split("-"))
    given = {*profile.takes, *profile.masks}
    used = {name for equation in program.equations for name in equation.operands}
    for name in inputs:
        if name not in given:
            yield f"the input {name} of the text is no argument: add it to `takes`"
        if name not in used:
            yield f"no equation uses the input {name}"
    groups = profile.optional.items()
    absent = {name for flag, names in groups if flag not in chosen for name in names}
    for name in profile.takes:
        if name in absent and name in inputs:
            yield f"{name} is optional, but the text has it where it is not given"
        if name not in absent and name not in inputs:
            yield f"the function takes {name}, which is no input of the text"
    bound = {k.name for k in profile.keywords.values() if isinstance(k, Parameter)}
    sizes = {k.axis for k in profile.keywords.values() if isinstance(k, Size)}
    for name in program.parameters:
        if name not in bound | sizes:
            yield f"no keyword gives the parameter {name}: bind it with Parameter({name!r})"
    for name in sizes:
        if name not in {*program.axis_names, *program.parameters}:
            yield f"Size({name!r}) is no axis of the text"
    axes = {name for tensor in inputs.values() for axis in tensor.axes for name in _names(axis)}
    for name in program.axis_names:
        if name not in axes | sizes:
            yield f"nothing says how large {name} is: no input has this axis, no keyword gives it"
    targets = {equation.target.name for equation in program.equations}
    for name in profile.returns:
        if name not in targets:
            yield f"it returns {name}, which no equation defines"


def _of_alternatives(profile: Profile) -> Iterator[str]:
    """Alternatives that have other values than the text, shown by enclosures that do not meet."""
    from qkvac.spec.cases import cases
    from qkvac.spec.enclosure import certify

    seen = set[str]()
    for case in cases(profile.name):
        if case.variant in seen or not case.generic or "float64" not in case.dtypes:
            continue
        seen.add(case.variant)
        inputs = case.inputs("float64")
        first, *others = (
            certify(program, inputs, case.bindings, "float64") for program in case.alternatives
        )
        for number, other in enumerate(others, 1):
            for name in first.keys() & other.keys():
                one, two = first[name], other[name]
                apart = np.abs((one.hi - two.hi) + (one.lo - two.lo))
                if np.any(apart > (one.radius + two.radius) * ROOM):
                    yield f"alternative {number} has another {name} than the text"


def _names(axis: Expr) -> set[str]:
    return {node.name for node in walk(axis) if isinstance(node, Ref)}


def _of_names(profile: Profile) -> Iterator[str]:
    """Names that the declaration uses and the texts do not have."""
    inputs = profile.inputs
    tensors = {name for program in profile.programs for name in program.tensors}
    parameters = {name for program in profile.programs for name in program.parameters}
    for name in profile.reports:
        if name not in tensors or name in inputs:
            yield f"it may report {name}, which no equation defines"
    for role in ("shared", "transposed"):
        for name in getattr(profile, role):
            if name not in inputs:
                yield f"{name} is {role}, but no input of the text"
    for flag, names in profile.optional.items():
        for name in names:
            if name not in profile.takes:
                yield f"{name} is optional ({flag}), but no argument"
    for keyword, bound in profile.keywords.items():
        if not keyword.isidentifier():
            yield f"{keyword!r} is no name of a keyword"
        if isinstance(bound, Mask) and bound.input not in inputs:
            yield f"the keyword {keyword} gives {bound.input}, which is no input of the text"
        if isinstance(bound, Parameter) and bound.name not in parameters:
            yield f"the keyword {keyword} gives {bound.name}, which is no parameter of the text"
        if isinstance(bound, Parameter) and not bound.values:
            yield f"the keyword {keyword} has no values to try"
    chosen = {word for variant in profile.texts for word in variant.split("-")}
    for keyword, words in profile.choices.items():
        missing = [word for word in words if word and word not in chosen]
        if missing:
            kind = "a flag" if isinstance(profile.keywords.get(keyword), Flag) else "optional"
            yield f"{keyword} is {kind}, but there is no text for {missing[0]}"
    for name, tensor in inputs.items():
        if tensor.kind == "index" and name not in profile.index_limits:
            yield f"nothing says how large the whole numbers {name} may be"
