"""The contract: what attention is, and what an implementation of it is judged by.

A profile of one's own is declared with the names that are public here.
"""

from __future__ import annotations

from qkvac.spec.grammar.syntax import SpecError
from qkvac.spec.profile import Flag, Mask, Parameter, Profile, Size

__all__ = ["Flag", "Mask", "Parameter", "Profile", "Size", "SpecError"]
