"""Declarations: what they may say, what they mean, and what is wrong with one."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from qkvac.spec import attention, formats
from qkvac.spec.attention import CONVENTIONS, SIGMOID_FORMS, SOFTMAX_FORMS, Arithmetic
from qkvac.targets import declaration
from qkvac.targets.declaration import DTYPES, Declaration, DeclarationError, find, load, parse
from qkvac.targets.ports import known_functions

FILE = resources.files("qkvac.targets") / "declaration.schema.json"
SCHEMA = json.loads(FILE.read_text("utf-8"))


def test_the_schema_is_a_schema() -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_has_the_words_of_the_spec() -> None:
    definitions = SCHEMA["$defs"]
    assert tuple(definitions["dtype"]["enum"]) == DTYPES == formats.DTYPES
    assert set(definitions["format"]["enum"]) == set(formats.FORMATS)
    assert all(re.fullmatch(definitions["profile"]["pattern"], name) for name in known_functions())
    assert tuple(definitions["support"]["enum"]) == declaration.SUPPORTS
    fields = definitions["arithmetic"]["properties"]
    assert tuple(fields) == declaration.ARITHMETIC_FIELDS
    assert set(fields) == set(Arithmetic.__dataclass_fields__)
    assert tuple(fields["softmax"]["enum"]) == SOFTMAX_FORMS
    assert tuple(fields["sigmoid"]["enum"]) == SIGMOID_FORMS
    conventions = SCHEMA["properties"]["conventions"]["properties"]
    for name, convention in CONVENTIONS.items():
        assert tuple(conventions[name]["enum"])[: len(convention.options)] == convention.options
        assert declaration.DEFAULT_CONVENTIONS[name] == convention.default
    assert conventions.keys() == declaration.DEFAULT_CONVENTIONS.keys() == CONVENTIONS.keys()


def test_nothing_declared_is_the_least() -> None:
    plain = parse({})
    assert plain == Declaration()
    assert plain.profiles == ("attention",)
    assert plain.supports == frozenset()
    assert plain.dtypes == ("float32", "float64")
    assert not plain.dtypes_declared
    assert plain.deterministic
    assert plain.arithmetic("float32", "default", "cpu") == {}


def test_profiles_are_read_from_the_functions() -> None:
    assert parse({}, functions=["embedding"]).profiles == ("embedding",)
    both = ["attention", "embedding"]
    assert parse({"profiles": ["attention"]}, functions=both).profiles == ("attention",)


def test_declared_dtypes_are_those() -> None:
    declared = parse({"dtypes": ["bfloat16"]})
    assert declared.dtypes == ("bfloat16",)
    assert declared.dtypes_declared


def test_all_is_every_word() -> None:
    assert parse({"supports": "all"}).supports == frozenset(declaration.SUPPORTS)
    assert parse({"supports": ["batches"]}).supports == frozenset({"batches"})


def test_conventions_are_filled_up() -> None:
    declared = parse({"conventions": {"weight_layout": "cxd", "mask": "True drops"}}).conventions
    assert declared == {
        "empty_row": "zeros",
        "causal_alignment": "top-left",
        "mask": "True drops",
        "weight_layout": "c×d",
    }


TABLE = {
    "accumulation": "float32",
    "softmax": "fused",
    "float64": {"accumulation": "float64"},
    "compile": {"softmax": "reciprocal", "float64": {"blocks": 16}},
    "cuda": {"operands": "tfloat32", "float64": {"operands": "float64"}},
    "cuda:1": {"operands": "bfloat16"},
    "bfloat16": {"compile": {"blocks": 32, "cuda": {"blocks": 64}}},
}


@pytest.mark.parametrize(
    ("dtype", "mode", "device", "expected"),
    [
        ("float32", "eager", "cpu", {"accumulation": "float32", "softmax": "fused"}),
        ("float64", "eager", "cpu", {"accumulation": "float64", "softmax": "fused"}),
        (
            "float64",
            "compile",
            "cpu",
            {"accumulation": "float64", "softmax": "reciprocal", "blocks": 16},
        ),
        (
            "float32",
            "eager",
            "cuda:0",
            {"accumulation": "float32", "softmax": "fused", "operands": "tfloat32"},
        ),
        (
            "float32",
            "eager",
            "cuda:1",
            {"accumulation": "float32", "softmax": "fused", "operands": "bfloat16"},
        ),
        (
            "float64",
            "eager",
            "cuda:1",
            {"accumulation": "float64", "softmax": "fused", "operands": "float64"},
        ),
        (
            "bfloat16",
            "compile",
            "cuda:0",
            {
                "accumulation": "float32",
                "softmax": "reciprocal",
                "operands": "tfloat32",
                "blocks": 64,
            },
        ),
    ],
)
def test_the_most_specific_table_wins(
    dtype: str, mode: str, device: str, expected: dict[str, Any]
) -> None:
    raw = {
        "modes": ["eager", "compile"],
        "devices": ["cpu", "cuda:0", "cuda:1"],
        "arithmetic": TABLE,
    }
    fields = parse(raw).arithmetic(dtype, mode, device)
    assert fields == expected
    assert isinstance(Arithmetic.for_dtype(dtype, fields), attention.Arithmetic)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param({"dtype": ["float32"]}, "'dtype' is not a key; did you mean", id="key"),
        pytest.param({"dtypes": ["float23"]}, "choose from .*did you mean 'float32'", id="dtype"),
        pytest.param({"dtypes": []}, "dtypes: .*", id="no-dtypes"),
        pytest.param({"dtypes": "float32"}, "dtypes: 'float32' is not of type", id="no-list"),
        pytest.param({"supports": ["batch"]}, "'batch'.*did you mean 'batches'", id="support"),
        pytest.param({"supports": "everything"}, "'everything': not 'all'", id="everything"),
        pytest.param({"supports": 3}, "supports = 3", id="support-number"),
        pytest.param({"profiles": ["atention"]}, "did you mean 'attention'", id="profile"),
        pytest.param({"name": 3}, "name: 3 is not of type", id="name"),
        pytest.param({"deterministic": "no"}, "deterministic: ", id="bool"),
        pytest.param({"devices": ["a b"]}, "devices.0: ", id="device"),
        pytest.param(
            {"arithmetic": {"acumulation": "float32"}}, "did you mean 'accumulation'", id="field"
        ),
        pytest.param({"arithmetic": {"storage": "float8"}}, "storage = 'float8'", id="format"),
        pytest.param({"arithmetic": {"blocks": -1}}, "blocks: -1", id="blocks"),
        pytest.param({"arithmetic": {"blocks": True}}, "blocks: True", id="bool-blocks"),
        pytest.param({"arithmetic": {"softmax": "fast"}}, "softmax = 'fast'", id="softmax"),
        pytest.param(
            {"arithmetic": {"flaot64": {"blocks": 1}}}, "did you mean 'float64'", id="condition"
        ),
        pytest.param({"arithmetic": {"cuda": {"blocks": 1}}}, "for no dtype, mode", id="no-cuda"),
        pytest.param({"conventions": {"mask": True}}, "choose from True keeps", id="convention"),
        pytest.param({"name": object()}, "besides plain values", id="object"),
        pytest.param({"name": float("nan")}, "besides plain values", id="nan"),
    ],
)
def test_what_is_wrong_is_one_line(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(DeclarationError, match=words) as caught:
        parse(raw, source="port.toml")
    assert str(caught.value).startswith("port.toml")
    assert len(str(caught.value).splitlines()) == 1


def test_a_profile_without_its_function_is_wrong() -> None:
    with pytest.raises(DeclarationError, match=r"'embedding'.*no such function .*attention"):
        parse({"profiles": ["embedding"]}, functions=["attention"])


# --- from where ------------------------------------------------------------------------------


def test_later_sources_win_key_by_key(tmp_path: Path) -> None:
    file = tmp_path / "port.toml"
    file.write_text('dtypes = ["float64"]\n[arithmetic]\nsoftmax = "fused"\nblocks = 16\n')
    base = {"name": "mine", "dtypes": ["float32"], "arithmetic": {"flushes": True}}
    words = ["arithmetic.blocks=32", 'arithmetic.float64.storage="float32"']
    assert load(base, file=file, assignments=words) == {
        "name": "mine",
        "dtypes": ["float64"],
        "arithmetic": {
            "flushes": True,
            "softmax": "fused",
            "blocks": 32,
            "float64": {"storage": "float32"},
        },
    }
    assert base["arithmetic"] == {"flushes": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("arithmetic.storage=float32", {"arithmetic": {"storage": "float32"}}),
        ("arithmetic.softmax = shifted, divided", {"arithmetic": {"softmax": "shifted, divided"}}),
        ("conventions.mask=True drops", {"conventions": {"mask": "True drops"}}),
        ("conventions.weight_layout=c×d", {"conventions": {"weight_layout": "c×d"}}),
        ("deterministic=false", {"deterministic": False}),
        ('dtypes=["bfloat16"]', {"dtypes": ["bfloat16"]}),
    ],
)
def test_an_assignment_without_quotes_is_a_word(text: str, expected: dict[str, Any]) -> None:
    assert load(assignments=[text]) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arithmetic.storag=float32", "arithmetic.storag is not a key; did you mean 'storage'?"),
        ("arithmetic.storage=float23", "arithmetic.storage = 'float23': choose from float64, flo"),
        ("dtypes=float32", "dtypes: 'float32' is not of type 'array'"),
        ("dtypes=[float32]", "quote it for the shell, like --declare 'dtypes="),
        ("supports", "write KEY=VALUE in TOML"),
        ("a b=c", "--declare a b=c: "),
        ("color=red", "'color' is not a key"),
    ],
)
def test_a_wrong_assignment_is_one_clear_line(text: str, words: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        load(assignments=[text])
    message = str(caught.value)
    assert message.startswith(f"--declare {text}: ")
    assert words in message
    assert len(message.splitlines()) == 1


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "port.toml"
    file.write_text("[arithmetic]\nflushes = 1\n")
    with pytest.raises(DeclarationError, match=r"port\.toml: arithmetic\.flushes: 1 is not of"):
        load(file=file)
    file.write_text("name = \n")
    with pytest.raises(DeclarationError, match=r"port\.toml: .*line 1"):
        load(file=file)


def test_a_declaration_lies_beside_the_first_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find(["python3", "missing.py"]) is None
    (tmp_path / "port.toml").touch()
    assert find(["python3", "missing.py"]) == Path("port.toml")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "port").touch()
        (tmp_path / name / "port.toml").touch()
    assert find(["./a/port", "b/port"]) == Path("a/port.toml")
    (tmp_path / "a" / "port.toml").unlink()
    assert find(["./a/port", "b/port"]) == Path("b/port.toml")
    assert find(["./a/port"]) == Path("port.toml")
