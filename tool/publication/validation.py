"""The record's schema, applied to many lines.

A record has a line for each of up to 100,000 cells, and a general validator takes longer over
these than the run did. So the schema of a line is compiled into nested functions once; it is the
same file that documents the form, and a keyword that is not known here is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Final, TypeAlias

import jsonschema

Test: TypeAlias = Callable[[Any], bool]

ANNOTATIONS: Final = frozenset({"description", "title", "format", "$schema", "$defs"})

TYPES: Final[Mapping[str, Test]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


@cache
def schema() -> dict[str, Any]:
    """The schema of a record's lines."""
    text = (resources.files("qkvac") / "record.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def accepts(kind: str) -> Test:
    """Whether a line is a header, result or footer as the schema has it."""
    return compiled(schema()["$defs"][kind], schema())


def complaint(kind: str, line: Any) -> str:
    """What the schema does not allow about a line, in few words."""
    whole = schema()
    part = {"$ref": f"#/$defs/{kind}", "$defs": whole["$defs"]}
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(part).iter_errors(line)
    )
    if error is None:
        return ""
    place = ".".join(map(str, error.absolute_path))
    message = " ".join(error.message.split())
    if len(message) > 120:
        message = f"{message[:60]} … {message[-59:]}"
    return f"{place}: {message}" if place else message


def compiled(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    """A function that says whether a value fits a schema; raises ValueError for a keyword."""
    tests = [
        KEYWORDS[word](part, root)
        for word in part
        if word not in ANNOTATIONS and word != "additionalProperties"
    ]
    if "additionalProperties" in part and "properties" not in part:
        tests.append(_properties(part, root))
    return tests[0] if len(tests) == 1 else _every(tests)


def _every(tests: Sequence[Test]) -> Test:
    # Loops, since generators would take most of the time of reading a record.
    def test(value: Any) -> bool:
        for each in tests:  # noqa: SIM110
            if not each(value):
                return False
        return True

    return test


def _some(tests: Sequence[Test]) -> Test:
    def test(value: Any) -> bool:
        for each in tests:  # noqa: SIM110
            if each(value):
                return True
        return False

    return test


def _reference(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    target: Any = root
    for step in part["$ref"].removeprefix("#/").split("/"):
        target = target[step]
    return compiled(target, root)


def _type(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    names = part["type"]
    if isinstance(names, str):
        return TYPES[names]
    return _some([TYPES[name] for name in names])


def _any_of(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    return _some([compiled(option, root) for option in part["anyOf"]])


def _enum(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    # True == 1 in Python, and not in JSON.
    allowed = frozenset((type(word), word) for word in part["enum"])
    kinds = {kind for kind, _ in allowed}
    return lambda value: type(value) in kinds and (type(value), value) in allowed


def _const(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    return _enum({"enum": [part["const"]]}, root)


def _required(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    names = frozenset(part["required"])
    return lambda value: not isinstance(value, dict) or names <= value.keys()


def _properties(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    known = {name: compiled(inner, root) for name, inner in part.get("properties", {}).items()}
    others = part.get("additionalProperties", True)
    rest: Test = (lambda _: others) if isinstance(others, bool) else compiled(others, root)

    def test(value: Any) -> bool:
        if isinstance(value, dict):
            for name, inner in value.items():
                if not known.get(name, rest)(inner):
                    return False
        return True

    return test


def _items(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    each = compiled(part["items"], root)
    return lambda value: not isinstance(value, list) or all(map(each, value))


def _pattern(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
    search = re.compile(part["pattern"]).search
    return lambda value: not isinstance(value, str) or search(value) is not None


def _length(word: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Test]:
    def build(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
        limit = part[word]
        if word == "minLength":
            return lambda value: not isinstance(value, str) or len(value) >= limit
        return lambda value: not isinstance(value, str) or len(value) <= limit

    return build


def _range(word: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Test]:
    within: Callable[[Any, Any], bool] = {
        "minimum": lambda value, limit: value >= limit,
        "maximum": lambda value, limit: value <= limit,
        "exclusiveMinimum": lambda value, limit: value > limit,
    }[word]

    def build(part: Mapping[str, Any], root: Mapping[str, Any]) -> Test:
        limit, number = part[word], TYPES["number"]
        return lambda value: not number(value) or within(value, limit)

    return build


KEYWORDS: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Test]]] = {
    "$ref": _reference,
    "type": _type,
    "anyOf": _any_of,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "properties": _properties,
    "items": _items,
    "pattern": _pattern,
    **{word: _length(word) for word in ("minLength", "maxLength")},
    **{word: _range(word) for word in ("minimum", "maximum", "exclusiveMinimum")},
}
