"""The ledger of conventions: which of them make a difference to a profile."""

from __future__ import annotations

from qkvac.ports import FUNCTIONS
from qkvac.spec.presentation import STORED_LINEAR


def ledger(profile: str) -> tuple[str, ...]:
    """Names of the conventions that change what a profile takes or returns."""
    function = FUNCTIONS[profile]
    # Where queries and keys are given apart, there may be more of the one than of the other.
    crossed = "Q" in function.positional
    weights = any(name.startswith("W") for name in function.positional)
    matters = {
        "empty_row": crossed,
        "causal_alignment": crossed,
        "mask": "mask" in function.keywords,
        "weight_layout": weights and profile not in STORED_LINEAR,
    }
    return tuple(name for name, makes in matters.items() if makes)
