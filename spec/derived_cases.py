"""Cases of any profile, made from its text and the roles of its inputs."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from qkvac.spec import draws
from qkvac.spec import gradient_families as cotangents
from qkvac.spec.case import Case
from qkvac.spec.equations import fold
from qkvac.spec.families import Frame, Inputs
from qkvac.spec.profile import PLAIN, Flag, Parameter, Profile, Size
from qkvac.spec.syntax import Tensor

SIZES: Final = (5, 9, 6, 3, 7, 4, 11, 2)
"""Sizes of the axes of a case in which all differ."""


def all_cases(profile: Profile) -> tuple[Case, ...]:
    """The cases of a profile, for every variant, in a fixed order."""
    return tuple(_case(profile, variant) for variant in profile.texts)


def _case(profile: Profile, variant: str) -> Case:
    program = (profile.of or profile).program(variant)
    sizes = dict(zip(program.axis_names, SIZES, strict=False))
    shape = "x".join(map(str, sizes.values()))
    place = f"normal/{variant}/{shape}" if len(profile.texts) > 1 else f"normal/{shape}"
    name = f"{profile.name}/{place}"
    return Case(
        name,
        profile.name,
        "normal",
        sizes,
        "plain data, all axes different",
        partial(_normal, profile=profile, variant=variant),
        name,
        compiled=True,
        generic=True,
        attributes=attributes(profile, variant, sizes),
        variant=variant if len(profile.texts) > 1 else "",
        masked=any(name in profile.masks for name in (t.name for t in program.inputs)),
    )


def attributes(profile: Profile, variant: str, sizes: dict[str, int]) -> dict[str, Any]:
    """The keyword arguments that a variant is called with, but for arrays."""
    chosen = set() if variant == PLAIN else set(variant.split("-"))
    found: dict[str, Any] = {}
    for keyword, bound in profile.keywords.items():
        if isinstance(bound, Size):
            found[keyword] = sizes[bound.axis]
        elif isinstance(bound, Parameter) and (not bound.optional or keyword in chosen):
            found[keyword] = bound.values[0]
        elif isinstance(bound, Flag) and keyword in chosen:
            found[keyword] = True
    return found


def _normal(f: Frame, profile: Profile, variant: str) -> Inputs:
    forward = profile.of or profile
    inputs = {t.name: _drawn(f, t, forward) for t in forward.program(variant).inputs}
    if profile.of is not None:
        shape = cotangents.shape_of_last(f, forward.name, variant, inputs)
        inputs[f"d{forward.last}"] = cotangents.normal(f, shape)
    return inputs


def _drawn(f: Frame, tensor: Tensor, profile: Profile) -> np.ndarray[Any, Any]:
    lead = () if tensor.name in profile.without_batch else f.batch
    shape = (*lead, *(int(fold(axis, f.sizes).rational()) for axis in tensor.axes))
    if tensor.kind == "index":
        limit = int(fold(profile.index_limits[tensor.name], f.sizes).rational())
        return draws.integers(f"{f.seed}/{tensor.name}", shape, 0, limit - 1)
    if tensor.kind == "mask":
        return np.asarray(draws.integers(f"{f.seed}/{tensor.name}", shape, 0, 4) < 3)
    return f.normal(tensor.name, shape)
