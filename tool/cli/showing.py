"""The commands that only show something: the spec, the backends, the cases, one case."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
import numpy as np

from qkvac.cli.ledger import ledger
from qkvac.spec.attention import CONVENTIONS, SPEC_VERSION, Arithmetic
from qkvac.spec.cases.catalogue import Case, cases, profiles_with_cases
from qkvac.spec.conventions import of_values
from qkvac.spec.profile import Profile
from qkvac.spec.registry import known_profiles, usual_profile
from qkvac.spec.symbolic import text
from qkvac.spec.verdicts.verdict import Question
from qkvac.subjects.registry import Backend, backends
from qkvac.subjects.selection import Selection, find_case
from qkvac.targets.declaration import DTYPES, DeclarationError, load, parse
from qkvac.targets.ports import known_functions
from qkvac.usage import UsageError, unknown

Array = np.ndarray[Any, Any]


def spec_text(name: str | None, form: str) -> str:
    """A profile, by default `usual`, as text, LaTeX or JSON; raises UsageError if unknown."""
    name = name or usual_profile()
    if name not in known_profiles():
        raise unknown("profile", name, known_profiles())
    profile = known_profiles()[name]
    if form == "json":
        return json.dumps(text.to_json(profile), ensure_ascii=False, indent=1)
    if form == "latex":
        named = ((variant, text.latex(profile.program(variant))) for variant in profile.texts)
        several = len(profile.texts) > 1
        return "\n\n".join(f"% {v}\n{latex}" if several else latex for v, latex in named)
    lines = [f"{profile.name}: {profile.about} (spec {SPEC_VERSION})", "", f"    {_call(name)}", ""]
    lines += [f"    {line}" for line in text.plain(profile.program()).splitlines()]
    for variant in list(profile.texts)[1:]:
        lines += ["", f"with {variant.replace('-', ', ')}:"]
        lines += [f"    {line}" for line in _new_lines(profile, variant)]
    lines += ["", f"returns {', '.join(profile.quantities)}"]
    if profile.intermediates:
        inner = [name for name in profile.quantities if name in profile.intermediates]
        lines[-1] += f"; {', '.join(inner)} may be left out"
    if profile.budget:
        count, turned = profile.budget.products, profile.budget.transpositions
        lines.append(
            f"takes {count} matrix product{'s' * (count != 1)}"
            f" and {turned} transposition{'s' * (turned != 1)}"
        )
    asked = cases(name)
    needed = sorted({word for case in asked for word in case.needs})
    if needed:
        lines.append(f"some cases need what a port declares in `supports`: {', '.join(needed)}")
    if matters := ledger(name):
        lines += ["", "conventions (the first is the spec's own; a port may declare another):"]
        lines += [
            f"    {c.name}: {c.about}: {' · '.join(c.options)}"
            for c in map(CONVENTIONS.__getitem__, matters)
        ]
    return "\n".join(lines)


def _call(name: str) -> str:
    """The signature of a profile's function."""
    function = known_functions()[name]
    words = [*function.positional, *(["*", *function.keywords] if function.keywords else [])]
    return f"{name}({', '.join(words)})"


def _new_lines(profile: Profile, variant: str) -> list[str]:
    """The declarations and equations of a variant that the first text does not have."""
    first = set(text.plain(profile.program()).splitlines())
    return [line for line in text.plain(profile.program(variant)).splitlines() if line not in first]


# --- backends ------------------------------------------------------------------------------


def show_backends(form: str) -> None:
    """What each backend offers and whether it can run here."""
    if form == "json":
        click.echo(json.dumps([_backend(b) for b in backends()], ensure_ascii=False, indent=1))
        return

    from qkvac.records.tables import table

    rows = table("backend", "version", "dtypes", "devices", "here")
    for backend in backends():
        declared = backend.declaration
        for mode in backend.modes:
            rows.add_row(
                f"{backend.name}/{mode}",
                backend.version,
                "all four" if len(declared.dtypes) == len(DTYPES) else " ".join(declared.dtypes),
                " ".join(d for d in declared.devices if declared.runs_on(mode, d)),
                backend.obstacle(mode) or "runs",
            )
    for column in rows.columns[2:]:
        column.no_wrap = False
    from qkvac.terminal import Terminal

    console = Terminal()
    console.print(rows)
    offers = dict[tuple[str, ...], list[str]]()
    for backend in backends():
        if not backend.broken:
            offers.setdefault(backend.declaration.profiles, []).append(backend.name)
    for profiles, names in offers.items():
        verb = "offers" if len(names) == 1 else "offer"
        console.print(f"\n{', '.join(names)} {verb} {', '.join(profiles)}", markup=False)


def _backend(backend: Backend) -> dict[str, Any]:
    declared = backend.declaration
    return {
        "name": backend.name,
        "version": backend.version,
        "installed": backend.installed,
        "modes": {mode: backend.obstacle(mode) for mode in backend.modes},
        "dtypes": declared.dtypes,
        "devices": declared.devices,
        "profiles": declared.profiles,
        "supports": sorted(declared.supports),
        "conventions": dict(declared.conventions),
        "arithmetic": declared.arithmetic_table,
    }


# --- cases ---------------------------------------------------------------------------------


def show_cases(profiles: tuple[str, ...], patterns: tuple[str, ...], form: str) -> None:
    """Ids and reasons of the selected cases."""
    tier = "full" if any("crossed" in pattern for pattern in patterns) else "quick"
    selection = Selection(profiles=profiles, cases=patterns, tier=tier)
    selection.check()
    chosen = [case for name in profiles_with_cases() for case in selection.chosen(name)]
    if form == "json":
        click.echo(json.dumps([_case(case) for case in chosen], ensure_ascii=False, indent=1))
        return
    for case in chosen:
        click.echo(case.id)
        marks = [str(case.tier)] if case.tier != "default" else []
        marks += ["compiled"] if case.compiled else []
        marks += [f"exact {' '.join(case.exact)}"] if case.exact else []
        marks += [" ".join(case.dtypes)] if len(case.dtypes) < 4 else []
        marks += [f"needs {', '.join(sorted(case.needs))}"] if case.needs else []
        click.echo(f"    {case.why}" + (f" ({'; '.join(marks)})" if marks else ""))


def _case(case: Case) -> dict[str, Any]:
    return {
        "id": case.id,
        "why": case.why,
        "variant": case.variant,
        "sizes": dict(case.sizes),
        "batch": case.batch,
        "attributes": dict(case.attributes),
        "masked": case.masked,
        "needs": sorted(case.needs),
        "dtypes": case.dtypes,
        "tier": case.tier,
        "compiled": case.compiled,
        "generic": case.generic,
        "exact": case.exact,
        "layouts": dict(case.layouts),
    }


# --- one case ------------------------------------------------------------------------------


def show_case(id: str, dtype: str | None, form: str, declare: Sequence[str] = ()) -> None:
    """Inputs, certified values and bounds of a case, those of a port that declares `declare`.

    Raises UsageError for an unknown case, and for what cannot be declared.
    """
    case = _found(id)
    if dtype is None:
        dtype = case.dtypes[0]
    elif dtype not in case.dtypes:
        raise unknown(f"dtype for {case.id}", dtype, case.dtypes)
    try:
        declared = parse(load(assignments=declare), source="--declare")
    except DeclarationError as error:
        raise UsageError(str(error)) from error
    model = Arithmetic.for_dtype(dtype, declared.arithmetic(dtype, "default", "cpu"))
    question = Question(case, dtype, model, conventions=of_values(declared.conventions))
    shown = {name: _quantity(question, name) for name in case.quantities}
    if form == "json":
        inputs = {name: _wide(array) for name, array in question.inputs.items()}
        values = {"inputs": inputs, "quantities": shown}
        click.echo(json.dumps({**_case(case), "dtype": dtype, **_listed(values)}))
        return
    from qkvac.records.summary import model_words

    sizes = ", ".join(f"{axis} = {size}" for axis, size in case.sizes.items())
    click.echo(f"{case.id}  {dtype}  ({sizes})\n{case.why}")
    if case.batch:
        click.echo(f"batch of {' × '.join(map(str, case.batch))}")
    if case.attributes:
        click.echo("called with " + ", ".join(f"{k} = {v}" for k, v in case.attributes.items()))
    if case.layouts:
        click.echo("layouts: " + ", ".join(f"{k} {v}" for k, v in case.layouts.items()))
    click.echo(f"bounds of what is declared: {model_words(model, dtype)}")
    for name, array in question.inputs.items():
        click.echo(f"\n{name} {list(array.shape)}\n{_array(_wide(array))}")
    for name, parts in shown.items():
        equation = question.program.equation(name).text
        click.echo(f"\n{equation}")
        click.echo(f"certified, {_proved(parts)}\n{_array(parts['certified'])}")
        click.echo(f"bound of its error, at most {np.max(parts['bound'], initial=0.0):.3g}")
        click.echo(_array(parts["bound"], 3))


def _found(id: str) -> Case:
    """The case of an id, which may lack its profile; raises UsageError for an unknown one."""
    if id.partition("/")[0] in known_profiles():
        return find_case(id)
    for name in profiles_with_cases():
        with suppress(UsageError):
            return find_case(f"{name}/{id}")
    return find_case(f"attention/{id}")


def _wide(array: Array) -> Array:
    """Numbers as float64; masks and tokens as they are."""
    return array if array.dtype.kind in "bi" else array.astype(np.float64)


def _quantity(question: Question, name: str) -> dict[str, Any]:
    enclosure, proof = question.certified[name], question.exactness[name]
    return {
        "certified": enclosure.hi,
        "remainder": enclosure.lo,
        "radius": enclosure.radius,
        "bound": question.bounds[name],
        "claimed_exact": name in question.case.exact,
        "proved_exact": proof.holds,
        "through_softmax": proof.through_softmax,
    }


def _proved(parts: dict[str, Any]) -> str:
    """How exactly a quantity has to be met, in words."""
    radius = float(np.max(parts["radius"], initial=0.0))
    known = f"to within {radius:.1g}" if radius else "exactly"
    if parts["claimed_exact"]:
        form = ' (asked of softmax = "shifted, divided")' if parts["through_softmax"] else ""
        return f"{known}; every bit is required{form}"
    count = int(np.sum(parts["proved_exact"]))
    return known + (f"; {count} of {parts['proved_exact'].size} entries are exact" if count else "")


def _array(array: Array, precision: int = 9) -> str:
    return np.array2string(
        array, precision=precision, threshold=200, edgeitems=3, max_line_width=100
    )


def _listed(value: Any) -> Any:
    """Arrays as lists; what JSON lacks as text."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _listed(value.tolist())
    if isinstance(value, list):
        return [_listed(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
