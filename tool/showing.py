"""The commands that only show something: the spec, the backends, the cases, one case."""

from __future__ import annotations

import json
from typing import Any

import click
import numpy as np

from qkvac.registry import Backend, backends
from qkvac.selection import Selection, find_case, profiles_with_cases
from qkvac.spec import text
from qkvac.spec.attention import CONVENTIONS, PROFILES, SPEC_VERSION, Arithmetic
from qkvac.spec.cases import Case
from qkvac.spec.verdict import Question
from qkvac.usage import unknown

Array = np.ndarray[Any, Any]


def spec_text(name: str, form: str) -> str:
    """A profile as text, LaTeX or JSON; raises UsageError for an unknown one."""
    if name not in PROFILES:
        raise unknown("profile", name, PROFILES)
    profile = PROFILES[name]
    if form == "json":
        return json.dumps(text.to_json(profile), ensure_ascii=False, indent=1)
    if form == "latex":
        return text.latex(profile.program())
    lines = [f"{profile.name}: {profile.about} (spec {SPEC_VERSION})", ""]
    lines += [f"    {line}" for line in text.plain(profile.program()).splitlines()]
    others = list(profile.texts)[1:]
    if others:
        lines += ["", f"with flags: {', '.join(others)}"]
    lines += ["", f"returns {', '.join(profile.quantities)}"]
    if profile.optional:
        lines[-1] += f"; {', '.join(sorted(profile.optional))} may be left out"
    if profile.budget:
        count, turned = profile.budget.products, profile.budget.transpositions
        lines.append(f"takes {count} matrix products and {turned} transposition")
    lines += ["", "conventions (the first is the spec's own; a port may declare another):"]
    lines += [f"    {c.about}: {' · '.join(c.options)}" for c in CONVENTIONS.values()]
    return "\n".join(lines)


# --- backends ------------------------------------------------------------------------------


def show_backends(form: str) -> None:
    """What each backend offers and whether it can run here."""
    if form == "json":
        click.echo(json.dumps([_backend(b) for b in backends()], ensure_ascii=False, indent=1))
        return
    from rich.console import Console

    from qkvac.tables import table

    rows = table("backend", "version", "dtypes", "devices", "here")
    for backend in backends():
        declared = backend.declaration
        for mode in backend.modes:
            rows.add_row(
                f"{backend.name}/{mode}",
                backend.version,
                " ".join(declared.dtypes),
                " ".join(declared.devices),
                backend.obstacle(mode) or "runs",
            )
    for column in rows.columns:
        column.no_wrap = False
    Console(highlight=False).print(rows)


def _backend(backend: Backend) -> dict[str, Any]:
    declared = backend.declaration
    return {
        "name": backend.name,
        "version": backend.version,
        "installed": backend.installed,
        "modes": {mode: backend.obstacle(mode) for mode in backend.modes},
        "dtypes": declared.dtypes,
        "devices": declared.devices,
        "arithmetic": declared.arithmetic_table,
    }


# --- cases ---------------------------------------------------------------------------------


def show_cases(profiles: tuple[str, ...], patterns: tuple[str, ...], form: str) -> None:
    """Ids and reasons of the selected cases."""
    selection = Selection(profiles=profiles, cases=patterns, tier="full")
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
        click.echo(f"    {case.why}" + (f" ({'; '.join(marks)})" if marks else ""))


def _case(case: Case) -> dict[str, Any]:
    return {
        "id": case.id,
        "why": case.why,
        "sizes": dict(case.sizes),
        "dtypes": case.dtypes,
        "tier": case.tier,
        "compiled": case.compiled,
        "generic": case.generic,
        "exact": case.exact,
        "layouts": dict(case.layouts),
    }


# --- one case ------------------------------------------------------------------------------


def show_case(id: str, dtype: str | None, form: str) -> None:
    """Inputs, certified values and bounds of a case; raises UsageError for an unknown one."""
    case = find_case(id if "/" in id and id.split("/")[0] in PROFILES else f"attention/{id}")
    if dtype is None:
        dtype = case.dtypes[0]
    elif dtype not in case.dtypes:
        raise unknown(f"dtype for {case.id}", dtype, case.dtypes)
    model = Arithmetic.for_dtype(dtype, {"softmax": "shifted, divided"})
    question = Question(case, dtype, model)
    shown = {name: _quantity(question, name) for name in question.profile.quantities}
    if form == "json":
        inputs = {name: array.astype(np.float64) for name, array in question.inputs.items()}
        values = {"inputs": inputs, "quantities": shown}
        click.echo(json.dumps({**_case(case), "dtype": dtype, **_listed(values)}))
        return
    sizes = ", ".join(f"{axis} = {size}" for axis, size in case.sizes.items())
    click.echo(f"{case.id}  {dtype}  ({sizes})\n{case.why}")
    if case.layouts:
        click.echo("layouts: " + ", ".join(f"{k} {v}" for k, v in case.layouts.items()))
    for name, array in question.inputs.items():
        click.echo(f"\n{name} {list(array.shape)}\n{_array(array.astype(np.float64))}")
    for name, parts in shown.items():
        equation = question.program.equation(name).text
        click.echo(f"\n{equation}")
        click.echo(f"certified, {_proved(parts)}\n{_array(parts['certified'])}")
        click.echo(f"bound of its error, at most {np.max(parts['bound'], initial=0.0):.3g}")
        click.echo(_array(parts["bound"], 3))


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
