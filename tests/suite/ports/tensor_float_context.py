"""Weights and values are rounded to TF32 (11 bits) before their product."""

from _base import context, port
from _numerics import TENSOR_FLOAT, rounded

attention = port(context=lambda A, V: context(rounded(A, TENSOR_FLOAT), rounded(V, TENSOR_FLOAT)))
