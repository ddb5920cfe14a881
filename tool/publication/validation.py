"""The record's schema, applied to many lines.

A record has a line for each of up to 100,000 cells, and a general validator takes longer over
these than the run did. So the schema of a line is compiled once; it is the same file that
documents the form.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import fastjsonschema
import jsonschema

from qkvac import texts
from qkvac.records.record import READ
from qkvac.spec.verdicts import clauses, statuses

Test: TypeAlias = Callable[[Any], bool]


@cache
def schema() -> dict[str, Any]:
    """The schema of a record's lines.

    The file has all the clauses, statuses and formats that are known here.
    """
    text = (resources.files("qkvac.records") / "record.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    result = loaded["$defs"]["result"]["properties"]
    result["status"]["enum"] = [*statuses.names()]
    result["clause"]["enum"] = [*clauses.words(), *clauses.letters()]
    loaded["$defs"]["header"]["properties"]["format"]["enum"] = [*READ]
    return loaded


@cache
def accepts(kind: str) -> Test:
    """Whether a line is a header, result or footer as the schema has it."""
    validate = fastjsonschema.compile(_part(kind), use_default=False, use_formats=False)

    def test(line: Any) -> bool:
        try:
            validate(line)
        except fastjsonschema.JsonSchemaException:
            return False
        return True

    return test


def complaint(kind: str, line: Any) -> str:
    """What the schema does not allow about a line, in few words."""
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(_part(kind)).iter_errors(line)
    )
    if error is None:
        return ""
    place = ".".join(map(str, error.absolute_path))
    place, message = texts.short(place), texts.line(error.message, 10 * texts.LONGEST)
    if len(message) > 120:
        message = f"{message[:60]} … {message[-59:]}"
    return f"{place}: {message}" if place else message


def _part(kind: str) -> dict[str, Any]:
    """The schema of one kind of line."""
    return {"$ref": f"#/$defs/{kind}", "$defs": schema()["$defs"]}
