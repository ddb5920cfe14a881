"""C is returned as (c, n)."""

from _base import context, port

attention = port(context=lambda A, V: context(A, V).T)
