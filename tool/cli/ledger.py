"""The ledger of conventions: which of them make a difference to a profile."""

from __future__ import annotations

from qkvac.spec.grammar.syntax import Op, Program, walk
from qkvac.spec.registry import known_profiles, remembered


@remembered
def ledger(profile: str) -> tuple[str, ...]:
    """Names of the conventions that change what a profile takes or returns."""
    declared = known_profiles()[profile]
    # Where queries and keys are given apart, there may be more of the one than of the other.
    crossed = any(map(_is_crossed, declared.programs))
    matters = {
        "empty_row": bool(declared.masks) or crossed,
        "causal_alignment": crossed,
        "mask": bool(declared.masks),
        "weight_layout": bool(declared.weights),
    }
    return tuple(name for name, makes in matters.items() if makes)


def _is_crossed(program: Program) -> bool:
    """Whether it has a causal triangle of two axes that may differ."""
    return any(
        isinstance(node, Op) and node.name == "causal" and node.args[0] != node.args[1]
        for equation in program.equations
        for node in walk(equation.expression)
    )
