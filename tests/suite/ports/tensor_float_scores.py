"""Queries and keys are rounded to TF32 (11 bits) before their product."""

from _base import port, scores
from _numerics import TENSOR_FLOAT, rounded

attention = port(scores=lambda Q, K: scores(rounded(Q, TENSOR_FLOAT), rounded(K, TENSOR_FLOAT)))
