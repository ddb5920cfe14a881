"""No tokens give arrays of shape (0,)."""

from _base import context, port

QKVAC = {"supports": ["empty"]}

attention = port(context=lambda A, V: context(A, V) if len(A) else V.ravel())
