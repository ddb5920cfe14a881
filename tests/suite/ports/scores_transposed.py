"""K Qᵀ instead of Q Kᵀ."""

from _base import port, product

attention = port(scores=lambda Q, K: product(K, Q.T))
