"""Defaults of the command line: the table [tool.qkvac] of the nearest pyproject.toml that has one.

Its keys are the long options of the commands that take a selection of cases. What stands on the
command line wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from qkvac.texts import NAME, line, short
from qkvac.toml import TOMLDecodeError, loads, text_of
from qkvac.usage import UsageError, unknown

FILE: Final = "pyproject.toml"
MARK: Final = "--tier"
"""The option by which a command takes part."""
EVERYWHERE: Final = frozenset({"spec"})
"""Keys that hold for every command with such an option."""
ONCE: Final = frozenset({"list", "shard"})
"""Options that say what to do this time."""


def defaults(commands: Mapping[str, click.Command]) -> dict[str, dict[str, Any]]:
    """Default values by command and parameter, in the form of click's `default_map`.

    Raises UsageError for an unknown key or an impossible value, naming the file and the key.
    """
    found = _find()
    if found is None:
        return {}
    path, table = found
    options = {
        name: {
            key: option
            for option in command.params
            if (key := _key(option)) not in ONCE and (key in EVERYWHERE or _takes_part(command))
        }
        for name, command in commands.items()
        if any(_takes_part(command) or key in EVERYWHERE for key in map(_key, command.params))
    }
    known = {key for keys in options.values() for key in keys if key}
    for key in table:
        if key.replace("_", "-") not in known:
            error = unknown("key", key, sorted(known))
            raise UsageError(f"{path}, [tool.qkvac]: {error}")
    values = {key.replace("_", "-"): value for key, value in table.items()}
    return {
        name: {
            str(keys[key].name): _checked(path, key, value, keys[key], commands[name])
            for key, value in values.items()
            if key in keys
        }
        for name, keys in options.items()
        if not values.keys().isdisjoint(keys)
    }


def origin(message: str) -> str:
    """What stands before an error that quotes a value of the table: where that is; else ""."""
    try:
        found = _find()
    except UsageError:
        return ""
    if found is None or str(found[0]) in message:
        return ""
    path, table = found
    values = [value if isinstance(value, list) else [value] for value in table.values()]
    quoted = (repr(short(word)) for words in values for word in words if isinstance(word, str))
    return f"{path}, [tool.qkvac]: " if any(text in message for text in quoted) else ""


def _takes_part(command: click.Command) -> bool:
    return any(MARK in option.opts for option in command.params)


def _find() -> tuple[Path, dict[str, Any]] | None:
    """The table and where it stands, from the current folder upward."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / FILE
        try:
            text = text_of(path)
        except (OSError, ValueError):
            continue
        if "qkvac" not in text:
            continue
        try:
            tools = loads(text).get("tool", {})
        except TOMLDecodeError as error:
            raise UsageError(f"{path}: {line(error)}") from error
        if isinstance(tools, dict) and "qkvac" in tools:
            table = tools["qkvac"]
            if not isinstance(table, dict):
                raise UsageError(f"{path}: [tool.qkvac] is not a table")
            return path, table
    return None


def _key(option: click.Parameter) -> str:
    """The name of an option without its dashes; "" for an argument."""
    if not isinstance(option, click.Option):
        return ""
    long = [name for name in option.opts if name.startswith("--")]
    return long[0].removeprefix("--") if long else str(option.name).replace("_", "-")


def _checked(
    path: Path, key: str, value: object, option: click.Parameter, command: click.Command
) -> object:
    """The value in the form in which the command line would give it."""
    assert isinstance(option, click.Option)
    where = f"{path}, [tool.qkvac]: {key} = {line(repr(value), NAME)}"
    if option.multiple:
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(word, str) for word in values):
            raise UsageError(f"{where}: it is a list of strings")
        value = values
    elif option.is_flag is not isinstance(value, bool) or isinstance(value, list | dict):
        raise UsageError(f"{where}: it is {'true or false' if option.is_flag else 'one value'}")
    if isinstance(option.type, click.Path) and isinstance(value, str):
        value = str(path.parent / value)
    elif isinstance(option.type, click.Path) and isinstance(value, list):
        value = [str(path.parent / word) for word in value]
    try:
        option.type_cast_value(click.Context(command), value)
    except click.BadParameter as error:
        raise UsageError(f"{where}: {error.message}") from error
    return value
