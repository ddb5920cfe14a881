"""C = Aᵀ V."""

from _base import port, product

attention = port(context=lambda A, V: product(A.T, V))
