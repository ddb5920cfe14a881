"""The check `mode`: what adapters count shows that a mode ran as named, or the check fails."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from qkvac.cells import Status, Subject
from qkvac.checks import protocol_checks, registry
from qkvac.checks.findings import Finding, Visit
from qkvac.isolation.process import Outcome
from qkvac.subjects.roster import Entry
from qkvac.subjects.selection import find_case
from qkvac.targets import packages
from qkvac.targets.declaration import DeclarationError, parse
from qkvac.tests.suite.engine_ports import MAIN, run
from qkvac.tests.suite.laboratory import inside, needs

CASE: Final = find_case(f"attention/{MAIN}")


def entries() -> Iterator[Entry]:
    """The modes of all adapters of ours that say what shows that they ran."""
    for name in packages.OWN:
        raw = packages.adapter(name).QKVAC
        for mode in raw.get("evidence", ()):
            yield Entry(Subject(name, mode, "cpu"), raw, (), {})


PROVED: Final = {entry.subject.name: entry for entry in entries()}


def finding(
    entry: Entry, before: Mapping[str, Any], after: Mapping[str, Any], calls: int = 2
) -> Finding:
    """What the check makes of what was counted before and after some calls."""
    outcome = Outcome("ok", times=(0.0,) * calls, evidence=after, evidence_before=before)
    inputs = CASE.inputs("float32")
    visit = Visit(entry, "float32", CASE, inputs, outcome, lambda _: outcome, lambda: None)
    return protocol_checks.mode(visit)


def name(pattern: str) -> str:
    """A fact that a pattern names."""
    return pattern.replace("[pg]*", "profiles").replace("[ac]*", "afe_softmax").replace("*", "")


HONEST: Final = {"each call": 2, "some": 1, "none": 0}
FALSE: Final = {"each call": (0, 1, 3), "some": (0,), "none": (1,)}


@pytest.mark.parametrize("subject", PROVED)
def test_each_declared_fact_can_fail(subject: str) -> None:
    entry = PROVED[subject]
    declared = entry.declaration.evidence[entry.subject.mode]
    honest = {name(pattern): HONEST[due] for pattern, due in declared.items()}
    before = dict.fromkeys(honest, 0)
    assert finding(entry, before, honest).status == Status.PASSED
    for pattern, due in declared.items():
        for number in FALSE[due]:
            found = finding(entry, before, {**honest, name(pattern): number})
            assert (found.status, found.clause) == (Status.FAILED, "metamorphic"), (pattern, number)
            assert f"{pattern} {number}" in (found.reason or "")
        rest = {fact: number for fact, number in honest.items() if fact != name(pattern)}
        assert f"{pattern} is not told" in (finding(entry, before, rest).reason or "")


def test_calls_before_are_not_counted() -> None:
    entry = PROVED["torch/compile"]
    facts = {"graphs": 3, "graph_breaks": 0}
    assert finding(entry, {**facts, "runs": 7}, {**facts, "runs": 9}).status == Status.PASSED
    assert finding(entry, {**facts, "runs": 7}, {**facts, "runs": 8}).status == Status.FAILED
    assert finding(entry, {**facts, "runs": 7}, {**facts, "runs": 8}, 1).status == Status.PASSED


COMPILED: Final = (
    *[("torch", "compile"), ("jax", "jit"), ("tensorflow", "function"), ("tensorflow", "xla")],
    *[("numpy", "loop"), ("numpy", "eager")],
)


def _counted(framework: str, mode: str, doctored: bool) -> tuple[Any, Any]:
    """What an adapter counts before and after two calls; a doctored one answers in another way."""
    adapter = importlib.import_module(f"qkvac.backends.{framework}.adapter").open(mode, "cpu")
    if doctored:
        adapter.run = lambda profile, tensors, keywords: {"C": tensors[0]}
    before = adapter.evidence()
    for _ in range(2):
        adapter.attention(*CASE.inputs("float32").values())
    return before, adapter.evidence()


@pytest.mark.parametrize("doctored", [False, True], ids=["honest", "doctored"])
@pytest.mark.parametrize(("framework", "mode"), COMPILED)
def test_an_adapter_that_answers_without_its_mode_fails(
    framework: str, mode: str, doctored: bool
) -> None:
    needs(framework, mode)
    before, after = inside(framework, _counted, framework, mode, doctored)
    found = finding(PROVED[f"{framework}/{mode}"], before, after)
    assert found.status == (Status.FAILED if doctored else Status.PASSED), found.reason


def test_every_mode_that_compiles_whole_calls_says_what_shows_it() -> None:
    for own in packages.OWN:
        raw = packages.adapter(own).QKVAC
        for mode in raw["modes"]:
            if mode in ("compile", "jit", "function", "xla"):
                assert mode in raw["evidence"], own


def test_the_check_is_made_where_something_is_declared() -> None:
    declared = PROVED["numpy/loop"]
    silent = replace(declared, raw={k: v for k, v in declared.raw.items() if k != "evidence"})
    assert "mode" in registry.names(declared, "float32", CASE)
    assert "mode" not in registry.names(silent, "float32", CASE)
    results = run(None, MAIN, backends=("numpy",), dtypes=("float32",))
    made = {r.cell.subject.mode: r for r in results if r.cell.quantity == "mode"}
    assert made.keys() == {"eager", "loop"}
    assert {r.status for r in made.values()} == {Status.PASSED}
    assert all("in 2 calls" in (r.reason or "") for r in made.values())


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ({"jitt": {"runs": "each call"}}, "evidence names 'jitt'"),
        ({"jit": {"runs": "often"}}, "choose from each call, some, none"),
    ],
)
def test_a_declaration_of_evidence_is_checked(evidence: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        parse({"modes": ["jit"], "evidence": evidence})


def test_numbers_are_told_by_name_and_lists_by_length() -> None:
    told = {"programs": ["a", "b"], "kernels": {"flash": 3}, "device": "cpu", "x": np.array(1)}
    assert protocol_checks.counted(told) == {"programs": 2, "kernels.flash": 3}
