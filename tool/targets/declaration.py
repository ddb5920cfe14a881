"""What a port or an adapter declares about itself, checked and with defaults put in.

The same table serves a Python port's `QKVAC`, `port.toml` and the adapters, so that a port is
judged by nothing that an adapter of ours is not judged by.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from qkvac.spec.registry import known_profiles, remembered, usual_profile
from qkvac.targets.only import Only
from qkvac.texts import NAME, line
from qkvac.toml import TOMLDecodeError, loads, text_of

SUPPORTS: Final = (
    *("batches", "empty", "layouts", "grouped_heads"),
    *("masks", "scale", "cross_length", "value_width"),
)
"""Words for inputs beyond the least that every port gets."""

DTYPES: Final = ("float64", "float32", "bfloat16", "float16")

ASSUMED_DTYPES: Final = ("float32", "float64")
"""Without declared dtypes; float64 only where the first case comes back as float64."""

DEFAULT_CONVENTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "empty_row": "zeros",
        "causal_alignment": "top-left",
        "mask": "True keeps",
        "weight_layout": "d×c",
    }
)

ARITHMETIC_FIELDS: Final = (
    *("storage", "operands", "accumulation", "elementwise"),
    *("scores", "softmax", "flushes", "blocks", "truncates", "sigmoid"),
)


FILE: Final = "port.toml"
"""Where a port that is no Python module declares itself."""

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


class DeclarationError(Exception):
    """A declaration that says something impossible; the message is one line."""


@dataclass(frozen=True)
class Declaration:
    """A checked declaration."""

    name: str = ""
    version: str = ""
    requires: tuple[str, ...] = ()
    """Distributions that an adapter needs; the first is the one that is tested."""
    profiles: tuple[str, ...] = ("attention",)
    supports: frozenset[str] = frozenset()
    only: Only = field(default_factory=Only)
    dtypes: tuple[str, ...] = ASSUMED_DTYPES
    dtypes_declared: bool = False
    devices: tuple[str, ...] = ("cpu",)
    modes: tuple[str, ...] = ("default",)
    mode_devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Kinds of devices that a mode is for, where it is not for all of them."""
    shapes: Mapping[str, str] = field(default_factory=dict)
    """Modes of an adapter in which every shape costs, so that "some" or "few" are run."""
    evidence: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By mode of an adapter: what it counts, and whether each call, some or none has to show."""
    deterministic: bool = True
    arithmetic_table: Mapping[str, Any] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=lambda: DEFAULT_CONVENTIONS)

    def runs_on(self, mode: str, device: str) -> bool:
        """Whether the mode is for the device."""
        kinds = self.mode_devices.get(mode, ())
        return not kinds or device.partition(":")[0] in kinds

    def arithmetic(self, dtype: str, mode: str, device: str) -> dict[str, Any]:
        """The declared fields of the arithmetic model that hold for this dtype, mode and device.

        A sub-table under more conditions wins over one under fewer; of two under equally many,
        the one that names the dtype wins, then the mode, then the device ("cuda" holds for
        "cuda:0", which is the more specific of the two).
        """
        weights = {device.partition(":")[0]: 1, device: 2, mode: 4, dtype: 8}
        fields: dict[str, Any] = {}
        for _, table in sorted(_tables(self.arithmetic_table, weights), key=lambda pair: pair[0]):
            fields.update({k: v for k, v in table.items() if k in ARITHMETIC_FIELDS})
        return fields


def find(words: Sequence[str]) -> Path | None:
    """The `port.toml` that goes with a port named by `words`, a command or a single path.

    It lies beside the first of them that is a file, else beside a later one, since the first may
    be an interpreter, else in the current folder.
    """
    named = [Path(word).parent for word in words if Path(word).is_file()]
    places = [folder / FILE for folder in (*named, Path())]
    return next((place for place in places if place.is_file()), None)


def load(
    base: Mapping[str, Any] = _EMPTY,
    *,
    file: Path | None = None,
    assignments: Sequence[str] = (),
) -> dict[str, Any]:
    """A raw table from all its sources, of which a later one wins, key by key.

    `base` is what the port says of itself, `file` a TOML file, `assignments` are dotted TOML:
    `arithmetic.storage="float32"`. Raises DeclarationError with the source and the key.
    """
    table = dict(base)
    if file is not None:
        try:
            layer = loads(text_of(file))
        except (OSError, ValueError) as error:
            raise DeclarationError(f"{file}: {line(error)}") from error
        _check(layer, str(file))
        table = _merged(table, layer)
    for text in assignments:
        source = f"--declare {line(text, NAME)}"
        layer = _assignment(text, source)
        _check(layer, source)
        table = _merged(table, layer)
    return table


def assignments(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The assignments in dotted TOML that say the same as a table; raises DeclarationError."""
    for key, value in table.items():
        name = f"{path}{json.dumps(str(key), ensure_ascii=False)}"
        if isinstance(value, Mapping):
            yield from assignments(value, f"{name}.")
            continue
        try:
            # What JSON and TOML have in common is all that a declaration holds.
            yield f"{name} = {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        except (TypeError, ValueError) as error:
            raise DeclarationError(
                f"{line(key, NAME)} holds something besides plain values: {line(error)}"
            ) from None


def _assignment(text: str, source: str) -> dict[str, Any]:
    """A table from one line of TOML; a bare word is a string, since shells remove quotes."""
    with suppress(TOMLDecodeError):
        return loads(text)
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not re.fullmatch(r"[^\[{\"'\\]+", value):
        raise DeclarationError(
            f"{source}: write KEY=VALUE in TOML and quote it for the shell, "
            f"like --declare 'dtypes=[\"float32\"]'"
        )
    try:
        return loads(f'{key} = "{value}"')
    except TOMLDecodeError as error:
        raise DeclarationError(f"{source}: {line(error)}") from error


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(under, value) if both else value  # type: ignore[arg-type]
    return merged


def parse(
    raw: Mapping[str, Any], *, functions: Sequence[str] = (), source: str = "QKVAC"
) -> Declaration:
    """Checks a raw table and puts the defaults in.

    `functions` are the profiles that a Python port was found to offer; `source` names the table
    in messages. Raises DeclarationError.
    """
    _check(raw, source)
    profiles = tuple(raw.get("profiles", functions or (usual_profile(),)))
    absent = [name for name in profiles if functions and name not in functions]
    if absent:
        raise DeclarationError(
            f"{source}: profiles names {absent[0]!r}, but the port has no such function "
            f"(it has {', '.join(functions)})"
        )
    supports = raw.get("supports", ())
    dtypes = tuple(raw.get("dtypes", ASSUMED_DTYPES))
    try:
        only = Only.of(raw.get("only", {}))
    except ValueError as error:
        raise DeclarationError(f"{source}: {line(error)}") from error
    declaration = Declaration(
        name=raw.get("name", ""),
        version=raw.get("version", ""),
        requires=_words(raw.get("requires", ())),
        profiles=profiles,
        supports=frozenset(SUPPORTS if supports == "all" else supports),
        only=only,
        dtypes=dtypes,
        dtypes_declared="dtypes" in raw,
        devices=tuple(raw.get("devices", ("cpu",))),
        modes=tuple(raw.get("modes", ("default",))),
        mode_devices=raw.get("mode_devices", {}),
        shapes=raw.get("shapes", {}),
        evidence=raw.get("evidence", {}),
        deterministic=raw.get("deterministic", True),
        arithmetic_table=raw.get("arithmetic", {}),
        conventions={
            **DEFAULT_CONVENTIONS,
            **{k: v.replace("x", "×") for k, v in raw.get("conventions", {}).items()},
        },
    )
    _check_conditions(declaration, source)
    return declaration


def _words(value: str | Sequence[str]) -> tuple[str, ...]:
    """One word, or several."""
    return (value,) if isinstance(value, str) else tuple(value)


def _tables(
    table: Mapping[str, Any], weights: Mapping[str, int], rank: tuple[int, int] = (0, 0)
) -> Iterator[tuple[tuple[int, int], Mapping[str, Any]]]:
    """The tables that hold, each with (number of conditions, what the conditions name)."""
    yield rank, table
    for key, inner in table.items():
        if isinstance(inner, Mapping) and key in weights:
            yield from _tables(inner, weights, (rank[0] + 1, rank[1] + weights[key]))


def _check_conditions(declaration: Declaration, source: str) -> None:
    kinds = {device.partition(":")[0] for device in declaration.devices}
    known = {*DTYPES, *declaration.modes, *declaration.devices, *kinds}
    for key, table in (("shapes", declaration.shapes), ("evidence", declaration.evidence)):
        for mode in table:
            if mode not in declaration.modes:
                hint = _hint(mode, declaration.modes)
                raise DeclarationError(f"{source}: {key} names {mode!r}, which is no mode{hint}")

    def visit(table: Mapping[str, Any], path: str) -> None:
        for key, inner in table.items():
            if not isinstance(inner, Mapping):
                continue
            if key not in known:
                raise DeclarationError(
                    f"{source}: {path}.{key} is for no dtype, mode or device of this port"
                    f"{_hint(key, [*ARITHMETIC_FIELDS, *sorted(known)])}"
                )
            visit(inner, f"{path}.{key}")

    visit(declaration.arithmetic_table, "arithmetic")


@remembered
def _validator() -> Any:
    import jsonschema

    file = resources.files("qkvac.targets") / "declaration.schema.json"
    schema = json.loads(file.read_text(encoding="utf-8"))
    schema["$defs"]["profile"] = {"enum": list(known_profiles())}
    return jsonschema.Draft202012Validator(schema)


def _check(raw: Mapping[str, Any], source: str) -> None:
    try:
        table = json.loads(json.dumps(raw, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DeclarationError(
            f"{source} holds something besides plain values: {line(error)}"
        ) from error
    errors = sorted(_validator().iter_errors(table), key=lambda e: (len(e.path), str(e.path)))
    if errors:
        raise DeclarationError(f"{source}: {line(_explain(errors[0]))}")


def _explain(error: Any) -> str:
    """One line for a schema error: where, what was found, what is possible, a near miss."""
    path = ".".join(str(part) for part in error.absolute_path)
    value = error.instance
    if error.validator == "additionalProperties":
        keys = sorted(error.schema["properties"])
        unknown = min(set(value) - set(keys))
        named = f"{path}.{unknown}" if path else unknown
        return f"{named!r} is not a key{_hint(unknown, keys)} (known: {', '.join(keys)})"
    if error.validator == "anyOf":
        words = value if isinstance(value, list) else [value]
        bad = next((word for word in words if word not in SUPPORTS), value)
        return f"{path} = {bad!r}: not 'all', nor among {', '.join(SUPPORTS)}{_hint(bad, SUPPORTS)}"
    if error.validator == "enum":
        options = error.validator_value
        return f"{path} = {value!r}: choose from {', '.join(options)}{_hint(value, options)}"
    if error.validator == "type" and len(error.absolute_path) > 1 and path.startswith("arithmetic"):
        key = str(error.absolute_path[-1])
        if key not in ARITHMETIC_FIELDS:
            known = ", ".join(ARITHMETIC_FIELDS)
            return f"{path} is not a key{_hint(key, ARITHMETIC_FIELDS)} (known: {known})"
    return f"{path or 'the table'}: {error.message}"


def _hint(word: object, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(word)[:NAME], known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
