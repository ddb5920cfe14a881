"""Vectors of all profiles: masks, tokens, attributes and absent biases, in files and back."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from qkvac.cells import Result, Status
from qkvac.cli.exporting import export, exported
from qkvac.engine.engine import Engine
from qkvac.execution.vectors import read_manifest
from qkvac.isolation.tensors import decode, encode
from qkvac.spec.cases.catalogue import cases, profiles_with_cases
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.ports import known_functions
from qkvac.tests.suite.profile_ports import EVERYTHING, GRADIENTS, write

PROFILES: Final = profiles_with_cases()
DECLARED: Final = (
    'supports="all"',
    'arithmetic.softmax="shifted, divided"',
    f"profiles={json.dumps(PROFILES)}",
)

PROGRAM: Final = """
import json, sys
from pathlib import Path
from qkvac.tests.suite.test_vector_profiles import answered
inputs, outputs = map(Path, sys.argv[1:])
for path in inputs.glob("*.safetensors"):
    (outputs / path.name).write_bytes(answered(path.read_bytes()))
"""


def functions() -> Mapping[str, Any]:
    scope: dict[str, Any] = {}
    exec(f"{EVERYTHING}\n\n{GRADIENTS}", scope)
    return scope


def answered(data: bytes) -> bytes:
    """What a right port writes for a vector, called by what its metadata says."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    profile, arrays = metadata["profile"], decode(data)
    words = known_functions()[profile]
    given = {**json.loads(metadata["attributes"]), **arrays}
    keywords = {name: given[name] for name in words.keywords if name in given}
    with np.errstate(all="ignore"):
        found = functions()[profile](*map(arrays.get, words.positional), **keywords)
    if not isinstance(found, dict):
        several = found if isinstance(found, tuple) else (found,)
        found = dict(zip(words.returns[-len(several) :], several, strict=True))
    return encode({name: array for name, array in found.items() if array is not None}, {})


def some() -> tuple[str, ...]:
    """A plain, a masked, a batched and an empty case of every variant there is."""
    chosen = {
        (c.profile, c.variant, c.masked, bool(c.batch), "empty" in c.needs): c.id
        for name in PROFILES
        for c in reversed(cases(name))
        if not c.layouts and c.tier == "default"
    }
    return tuple(chosen.values())


def results(selection: Selection) -> list[Result]:
    found = list[Result]()
    with Engine(selection, Options(workers=1)) as engine:
        engine.run(found.append)
    return [result for result in found if result.offered]


def test_masks_are_booleans_and_tokens_integers_in_files() -> None:
    kinds = dict[str, set[str]]()
    for vector in exported(Selection(cases=some(), dtypes=("float32",))):
        entry = vector.to_json()
        assert json.loads(json.dumps(entry["attributes"])) == dict(vector.case.attributes)
        for name, tensor in entry["inputs"].items():
            kinds.setdefault(name, set()).add(tensor["dtype"])
        back = decode(vector.data)
        assert back.keys() == vector.inputs.keys()
        for name, array in vector.inputs.items():
            assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
            assert back[name].tobytes() == array.tobytes()
    assert kinds["mask"] == {"BOOL", "F32"}
    assert kinds["tokens"] == {"I64"}
    assert all(kinds[name] == {"F32"} for name in kinds.keys() - {"mask", "tokens"})


def test_an_absent_bias_is_an_absent_tensor() -> None:
    plain = next(c for c in cases("attention_linear_layers") if c.variant in ("", "plain"))
    (vector, *_) = exported(Selection(cases=(plain.id,), dtypes=(plain.dtypes[0],)))
    assert not {"bq", "bk", "bv"} & decode(vector.data).keys()


def test_right_outputs_of_all_profiles_pass(tmp_path: Path) -> None:
    inputs, outputs = tmp_path / "inputs", tmp_path / "outputs"
    export(inputs, Selection(profiles=PROFILES, cases=some(), dtypes=("float32",)), False)
    outputs.mkdir()
    for path in inputs.glob("*.safetensors"):
        (outputs / path.name).write_bytes(answered(path.read_bytes()))
    graded = (str(inputs), str(outputs))
    found = results(Selection(graded=graded, declare=DECLARED, tier="full", dtypes=("float32",)))
    assert {r.status for r in found} <= {Status.PASSED, Status.UNSUPPORTED, Status.INDECISIVE}
    decided = {r.cell.profile for r in found if r.last and r.decisive}
    assert decided == set(PROFILES)
    asked = {r.cell.quantity for r in found if r.status == Status.PASSED and r.cell.is_check}
    assert asked >= {"repeat", "future", "first-row", "own-row", "batch", "sensitivity"}
    assert {case.rpartition("/s")[0] or case for case in read_manifest(inputs).digests["float32"]}


@pytest.mark.parametrize("wrong", ["", "future"])
def test_a_program_is_asked_about_masks_and_the_future(tmp_path: Path, wrong: str) -> None:
    program = tmp_path / "port.py"
    program.write_text(PROGRAM if not wrong else LEAKING, encoding="utf-8")
    port = f"-- {sys.executable} {program}"
    declare = ('supports="all"', 'profiles=["scaled_dot_product_attention"]', 'dtypes=["float64"]')
    picked = tuple(id for id in some() if "scaled_dot" in id and "causal" in id)
    found = results(Selection(port=port, declare=declare, cases=picked))
    failed = {r.cell.quantity for r in found if r.status == Status.FAILED}
    assert failed >= {"future", "A", "C"} if wrong else not failed
    assert any(r.cell.quantity == "future" for r in found)


LEAKING: Final = PROGRAM.replace(
    "inputs, outputs",
    """import qkvac.tests.suite.test_vector_profiles as place
place.EVERYTHING = place.EVERYTHING.replace("np.tri(L, S,", "np.tri(L, S, 1,")
inputs, outputs""",
    1,
)


def test_the_same_port_as_a_module_agrees(tmp_path: Path) -> None:
    port = write(tmp_path)
    found = results(Selection(port=port, cases=some()[:6], dtypes=("float64",)))
    assert {result.status for result in found} == {Status.PASSED}
