"""Whether the declaration of a profile makes sense: text, signature and roles agree.

The suite's own profiles are shown to by its tests, those of a user before anything runs. Every
error names the profile, and the line of the text where there is one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from keyword import iskeyword
from pathlib import Path
from sys import float_info
from typing import Any, Final
from unicodedata import normalize

import numpy as np

from qkvac.spec.grammar.axes import is_scalar
from qkvac.spec.grammar.equations import fold
from qkvac.spec.grammar.rules import ONE
from qkvac.spec.grammar.syntax import Expr, Op, Program, Ref, SpecError, walk
from qkvac.spec.profile import PLAIN, Binding, Flag, Mask, Parameter, Profile, Size
from qkvac.spec.registry import Source
from qkvac.spec.symbolic import shapes

ROOM: Final = 1 + 2.0**-40
"""For the roundings of a difference of two enclosures."""
SIZES: Final = (1, 2, 4, 5, 7, 9, 13)
"""Of all axes at once, for what is computed from them."""
LONG: Final = (200, 2**15)
"""Lines and characters beyond which a text is no text of an attention, and takes long to read."""
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
        except Exception as error:  # of a text that Python itself cannot read
            problem = f"its text cannot be read: {type(error).__name__}: {error}"
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
    yield from _of_signature(profile)
    yield from _of_texts(profile)
    for variant in profile.texts:
        for program in profile.equivalents(variant):
            where = "" if variant == PLAIN else f" ({variant})"
            yield from (f"{problem}{where}" for problem in _of_program(profile, variant, program))
    yield from _of_names(profile)
    for variant in profile.texts:
        for program in (*profile.equivalents(variant), *profile.gradients.equivalents(variant)):
            shapes.check(program)
        for program in profile.equivalents(variant):
            yield from _of_scalars(profile, program)
    if profile.alternatives:
        yield from _of_alternatives(profile)


def _is_name(word: str) -> bool:
    """Whether Python has it for a name as it stands, and not for another way to write one."""
    return word.isidentifier() and not iskeyword(word) and normalize("NFKC", word) == word


def _of_signature(profile: Profile) -> Iterator[str]:
    """What no Python function can be called by, take or return."""
    if not _is_name(profile.name) or profile.name.endswith("_gradients"):
        yield f"{profile.name!r} is no name for a function whose gradients are …_gradients"
    if not profile.about.isprintable():
        yield f"what it is, is said in one line that can be read, and not by {profile.about!a}"
    for word in profile.keywords:
        if not _is_name(word):
            yield f"{word!r} is no name of a keyword"
    for word, times in Counter((*profile.takes, *profile.keywords)).items():
        if times > 1:
            yield f"it takes {word} twice"
    for word, times in Counter(profile.returns).items():
        if times > 1:
            yield f"it returns {word} twice"
    if not profile.returns:
        yield "it returns nothing: name the quantities that its function returns"
    for word, bound in profile.keywords.items():
        yield from _of_keyword(word, bound)


def _of_keyword(keyword: str, bound: object) -> Iterator[str]:
    if not isinstance(bound, Binding):
        yield f"the keyword {keyword} is {bound!r}, and no Size, Flag, Mask or Parameter"
    if not isinstance(bound, Parameter):
        return
    if not bound.values:
        yield f"the keyword {keyword} has no values to try"
    for value in bound.values:
        if not isinstance(value, (int, float)) or not abs(value) <= float_info.max:
            yield f"the keyword {keyword} cannot try {value!r}, which is no finite number"


def _of_texts(profile: Profile) -> Iterator[str]:
    """What is no text, and flags that choose none."""
    for text in (profile.text, *profile.alternatives):
        try:
            made: dict[str, Any] = {**profile.made(text)}
        except SpecError:
            raise
        except Exception as error:
            yield f"its text cannot be made: {type(error).__name__}: {error}"
            return
        for variant, one in made.items():
            if not isinstance(one, str):
                yield f"its text is {one!r} where it is {variant}, and no string"
                continue
            lines = one.count("\n")
            if lines > LONG[0] or len(one) > LONG[1]:
                most = f"{LONG[0]} and {LONG[1]} are the most"
                yield f"its text has {lines} lines and {len(one)} characters; {most}"
    for flag, chosen in profile.choices.items():
        for word in filter(None, chosen):
            with_it = {v: t for v, t in profile.texts.items() if word in v.split("-")}
            without = [_without(profile, variant, word) for variant in with_it]
            if with_it and list(with_it.values()) == without:
                yield f"{flag} chooses nothing: the text is the same with {word} and without"


def _without(profile: Profile, variant: str, word: str) -> str | None:
    """The text of a variant without one of its words."""
    return profile.texts.get("-".join(w for w in variant.split("-") if w != word) or PLAIN)


def _of_scalars(profile: Profile, program: Program) -> Iterator[str]:
    """Numbers that cannot be computed: a zero below a bar, a root of what is negative."""
    bound = [one for one in profile.keywords.values() if isinstance(one, Parameter)]
    for equation in program.equations:
        for node in walk(equation.expression):
            if not isinstance(node, Op):
                continue
            if node.name == "divide" and is_scalar(node.args[1], program.tensors):
                node = Op("divide", (ONE, node.args[1]))
            elif not is_scalar(node, program.tensors):
                continue
            names = {part.name for part in walk(node) if isinstance(part, Ref)}
            for size in SIZES:
                sizes = dict.fromkeys(names, size)
                values = {one.name: one.values[0] for one in bound if one.name in names}
                try:
                    fold(node, {**sizes, **values})
                except (ArithmeticError, ValueError) as error:
                    where = ", ".join(f"{name} = {size}" for name in sorted(sizes.keys() - values))
                    yield f"{error}{f' (where {where})' if where else ''}\n    {equation.text}"
                    break


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
    from qkvac.spec.cases.catalogue import cases
    from qkvac.spec.enclosures.enclosure import certify

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
        if isinstance(bound, Mask) and bound.input not in inputs:
            yield f"the keyword {keyword} gives {bound.input}, which is no input of the text"
        if isinstance(bound, Parameter) and bound.name not in parameters:
            yield f"the keyword {keyword} gives {bound.name}, which is no parameter of the text"
    chosen = {word for variant in profile.texts for word in variant.split("-")}
    for keyword, words in profile.choices.items():
        missing = [word for word in words if word and word not in chosen]
        if missing:
            kind = "a flag" if isinstance(profile.keywords.get(keyword), Flag) else "optional"
            yield f"{keyword} is {kind}, but there is no text for {missing[0]}"
    for name, tensor in inputs.items():
        if tensor.kind == "index" and name not in profile.index_limits:
            yield f"nothing says how large the whole numbers {name} may be"
