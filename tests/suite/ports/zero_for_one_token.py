"""A single token is answered by a shortcut, with 0."""

from _base import context, port

attention = port(context=lambda A, V: context(A, V) if len(A) > 1 else 0 * V)
