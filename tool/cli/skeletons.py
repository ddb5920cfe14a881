"""The functions of a skeleton: what each takes and returns, and a way to compute it."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from typing import Final

from qkvac.checks.findings import listed
from qkvac.spec.grammar.adjoint import cotangent
from qkvac.spec.grammar.printing import declaration, expression
from qkvac.spec.grammar.syntax import Tensor
from qkvac.spec.profile import Binding, Flag, Mask, Profile, Size
from qkvac.spec.registry import known_profiles, option_for
from qkvac.spec.symbolic.numpy_functions import body, signature, spelt

WIDTH: Final = 98
MARGIN: Final = "    "
BLANK: Final = "\0"
"""A space at which no line ends."""
SUGGESTED: Final = "    #     "


def function(name: str) -> str:
    """A function that says what it has to do, raises until it does, and suggests how."""
    profile = known_profiles()[name]
    told = _filled(" ".join(_told(profile)))
    about = _filled(f'"""{_sentence(profile.about)}')
    lines = body(profile, WIDTH - len(SUGGESTED)).splitlines()
    suggestion = "\n".join(f"{SUGGESTED}{line}".rstrip() for line in lines)
    head = textwrap.fill(
        f"def {name}({signature(profile)}):", WIDTH, subsequent_indent=" " * len(f"def {name}(")
    )
    return (
        f'{head}\n{about}\n\n{told}\n    """\n'
        "    # Call your implementation here, and turn what it returns into arrays.\n    #\n"
        f'{suggestion}\n    raise RuntimeError("{name} is still to be written")\n'
    )


def _filled(text: str) -> str:
    """Text in lines, with the axes of a tensor in one."""
    whole = re.sub(r"\[[^\]]*\]", lambda found: found[0].replace(" ", BLANK), text)
    lines = textwrap.fill(whole, WIDTH, initial_indent=MARGIN, subsequent_indent=MARGIN)
    return lines.replace(BLANK, " ")


def _told(profile: Profile) -> Iterator[str]:
    """What is taken and returned, sentence by sentence."""
    yield f"{_taken(profile)}, and so is {_returned(profile)}."
    shared = [name for name in profile.takes if name in profile.shared]
    if shared and not profile.samples:
        sums = ", and their gradients are summed over it" if profile.base else ""
        yield f"Leading axes are those of a batch; {listed(shared)} have none{sums}."
    for group in profile.optional.values():
        theirs = ", and so are their gradients" if profile.base else ""
        yield f"{listed(group)} may be None{theirs}."
    for keyword, bound in profile.keywords.items():
        yield f"{keyword} is {_about(profile, bound)}."
    if profile.masks:
        yield "A query without keys has weights of 0."
    names = profile.quantities
    if profile.base and profile.intermediates:
        steps = [name for name in names if name in profile.intermediates]
        yield f"A dict of them may hold {', '.join(steps)} besides, and the test is sharper."
    elif len(names) > 1 and not profile.base:
        named = ", ".join(f'"{spelt(name)}": {name}' for name in names)
        yield f"{names[-1]} alone will do, but the more there is, the sharper the test;"
        yield f"{{{named}}} says it all."
    asked = shlex.join(("qkvac", "spec", profile.name, *option_for(profile.name)))
    yield f"The equations are those of `{asked}`."


def _taken(profile: Profile) -> str:
    forward = profile.of or profile
    inputs = forward.inputs
    indices = [name for name in forward.takes if inputs[name].kind == "index"]
    reals = [_shape(profile, inputs[name]) for name in forward.takes if name not in indices]
    numbers = [
        f"{_shape(profile, inputs[name])} holds whole numbers below "
        f"{expression(forward.index_limits[name])}; "
        for name in indices
    ]
    given = [f"{profile.takes[-1]}, the cotangent of {forward.last},"] if profile.base else []
    verb = "are NumPy arrays" if len(reals) + len(given) > 1 else "is a NumPy array"
    kind = "of one dtype (bfloat16 is that of ml_dtypes)"
    return f"{''.join(numbers)}{listed([*reals, *given])} {verb} {kind}"


def _returned(profile: Profile) -> str:
    tensors = {n: t for program in profile.programs for n, t in program.tensors.items()}
    told = [_shape(profile, tensors[name]) for name in profile.returns]
    added = ""
    if profile.base and profile.masks:
        masks = [cotangent(name) for name in sorted(profile.masks)]
        added = f", and {listed(masks)} where it is added to scores"
    return f"what is returned: {listed(told)}{added}"


def _shape(profile: Profile, tensor: Tensor) -> str:
    """`X[n, d]`, with dots for axes that are there anyway."""
    written = declaration(tensor)
    leading = profile.samples and tensor.name not in profile.without_batch
    return written.replace("[", "[..., ", 1) if leading else written


def _about(profile: Profile, bound: Binding) -> str:
    if isinstance(bound, Size):
        return f"the size of the axis {bound.axis}"
    if isinstance(bound, Flag):
        return "True or False"
    if isinstance(bound, Mask):
        axes = ", ".join(map(expression, (profile.of or profile).inputs[bound.input].axes))
        kinds = (
            "one of booleans keeps what is True, another is added, with −inf for what is dropped"
        )
        return f"None, or an array that broadcasts to [..., {axes}]: {kinds}"
    return "a number, or None" if bound.optional else "a number"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."
