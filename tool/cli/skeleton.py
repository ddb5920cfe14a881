"""What `qkvac new` writes: a port, or a declaration, to be filled in."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from qkvac.cli.ledger import ledger
from qkvac.cli.skeletons import function
from qkvac.spec.attention import CONVENTIONS
from qkvac.spec.grammar.syntax import Ref
from qkvac.spec.profile import Profile
from qkvac.spec.registry import known_profiles, option_for, usual_profile
from qkvac.targets.declaration import FILE
from qkvac.targets.only import is_choice
from qkvac.usage import UsageError, unknown

PORT: Final = '''\
"""A port of attention, to be filled in and then checked by qkvac."""

import numpy as np

# What the implementation is, so that it is judged by what it claims. Every key may be left out.
QKVAC = {{
    "name": {name},
    # Without dtypes: float32, and float64 if that is what comes back for it.
    # "dtypes": ["float64", "float32", "bfloat16", "float16"],
    # torch takes the bits of bfloat16: torch.from_numpy(X.view("int16")).view(torch.bfloat16).
{supports}
{only}
    # Whether the same call gives the same bits again.
    # "deterministic": True,
{conventions}
    # The precision of each step, from which the bounds are made: the formats that factors are
    # rounded to, that sums run in, and the form of the softmax ("shifted, divided", "fused",
    # "reciprocal" or "logsumexp"). A table under a dtype holds for that dtype alone.
    # "arithmetic": {{
    #     "softmax": "shifted, divided",
    #     "float16": {{"accumulation": "float32"}},
    # }},
}}
'''

OF_ALL: Final = (
    '"batches" have leading axes, "empty" has no tokens, "layouts" are strided or read-only arrays'
)
OF_KERNELS: Final = (
    '"grouped_heads" are fewer of K than of Q, "cross_length" and "value_width" are S ≠ L and '
    'v ≠ d, "masks" and "scale" are arguments'
)

DECLARATION: Final = """\
# What a port is that is no Python module, so that it is judged by what it claims: a command
# (qkvac check -- ./my_port), a model (qkvac check my_model.onnx), or outputs (qkvac grade).
# It lies beside the port, or where qkvac is run. Every key may be left out.

name = "my port"
# version = "1.0"

# The functions that it computes.
# profiles = ["attention"]

# Without dtypes: float32, and float64 if that is what comes back for it. A model has the dtype of
# its inputs.
# dtypes = ["float64", "float32", "bfloat16", "float16"]

# Inputs beyond plain ones: "empty" has no tokens.
# supports = ["empty"]

# What it takes alone: `causal = true` for attention that is always causal (false: that never is),
# `shapes = ["d = c"]` for axes of equal size, `rank = [2]` for so many axes of the first input.
# Cases outside are not put to it, and counted. A program may decline a single case as well: it
# writes the reason to CASE.unsupported and nothing to CASE.safetensors.
# only = {}

# Whether the same call gives the same bits again.
# deterministic = true

# The precision of each step, from which the bounds are made: the formats that factors are rounded
# to, that sums run in, and the form of the softmax ("shifted, divided", "fused", "reciprocal" or
# "logsumexp"). A table under a dtype holds for that dtype alone.
# [arithmetic]
# softmax = "shifted, divided"
# flushes = false
# [arithmetic.float16]
# accumulation = "float32"
"""


def port(name: str, profiles: tuple[str, ...]) -> str:
    """A Python port with a function for each of some profiles."""
    head = PORT.format(
        name=json.dumps(name, ensure_ascii=False),
        supports=_supports(any(map(_takes_more, profiles))),
        only=_only(profiles),
        conventions=_conventions({word for profile in profiles for word in ledger(profile)}),
    )
    return "\n\n".join([head, *map(function, profiles)])


def _spec(profiles: tuple[str, ...]) -> tuple[str, ...]:
    """Options by which some profiles are known, each once."""
    return tuple(word for option in dict.fromkeys(map(option_for, profiles)) for word in option)


def _takes_more(name: str) -> bool:
    """Whether a function takes what kernels take: masks, a scale, axes that differ."""
    profile = known_profiles()[name]
    return bool(profile.masks or profile.optional_numbers or profile.unequal)


def _only(profiles: tuple[str, ...]) -> str:
    declared = [known_profiles()[name] for name in profiles]
    words = []
    if any(map(is_choice, profiles)):
        words.append('"causal": True is always causal, False never')
    for one, other in (pair for profile in declared for pair in _sizes(profile)):
        words.append(f'"shapes": ["{one} = {other}"] are axes of equal size')
        break
    words.append('"rank": [3, 4] are the numbers of axes of the first input')
    about = f"What it takes alone: {'; '.join(words)}. Other cases are not put to it, and counted."
    return f'{_comment(about)}\n    # "only": {{}},'


def _sizes(profile: Profile) -> Iterator[tuple[str, str]]:
    """Pairs of axes that an implementation may want to be equal."""
    yield from profile.unequal.values()
    for name in profile.weights:
        one, other = (axis.name for axis in profile.inputs[name].axes if isinstance(axis, Ref))
        yield one, other


def _supports(kernel: bool) -> str:
    about = f"Inputs beyond plain ones: {OF_ALL}{f', {OF_KERNELS}' if kernel else ''}."
    listed = "all" if kernel else ["batches", "empty", "layouts"]
    return f'{_comment(about)}\n    # "supports": {json.dumps(listed)},'


def _conventions(matter: set[str]) -> str:
    chosen = [convention for name, convention in CONVENTIONS.items() if name in matter]
    if not chosen:
        return "    # There are no conventions to choose from here."
    about = "; ".join(f"{c.about} ({' or '.join(c.options)})" for c in chosen)
    lines = [_comment(f"What systems choose differently: {about}."), '    # "conventions": {']
    lines += [f'    #     "{c.name}": "{c.default}",' for c in chosen]
    return "\n".join([*lines, "    # },"])


def _comment(text: str) -> str:
    """Text in lines of a comment."""
    mark = "    # "
    return textwrap.fill(text, 98, initial_indent=mark, subsequent_indent=mark)


def write(path: Path, profiles: tuple[str, ...] = ()) -> str:
    """Writes the skeleton that goes by the file's name; returns what to do next.

    A port has a function for each of the profiles, by default for the usual one. Raises UsageError
    for an unknown one, or where it cannot be written; what is there already stays as it is.
    """
    for name in profiles:
        if name not in known_profiles():
            raise unknown("profile", name, known_profiles())
    profiles = tuple(dict.fromkeys(profiles)) or (usual_profile(),)
    if path.name == FILE:
        text, advice = DECLARATION, f"{path} is written; say in it what your port is"
    elif path.suffix == ".py":
        text = port(path.stem, profiles)
        names = " and ".join(f"`{name}`" for name in profiles)
        then = shlex.join(("qkvac", "check", str(path), *_spec(profiles)))
        advice = f"{path} is written; fill in {names}, then: {then}"
    else:
        raise UsageError(
            f"{path}: a skeleton is a Python port, FILE.py, or the declaration {FILE}; "
            "a port in another language starts from `qkvac export`"
        )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists, and is left as it is") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return advice
