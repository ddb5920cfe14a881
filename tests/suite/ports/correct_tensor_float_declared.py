"""Factors are rounded to TF32 before every product, and that is declared."""

from _base import port_with, product
from _numerics import TENSOR_FLOAT, rounded

QKVAC = {
    "dtypes": ["float32"],
    "supports": ["layouts", "empty"],
    "arithmetic": {"operands": "tfloat32", "softmax": "shifted, divided"},
}

attention = port_with(lambda x, y: product(rounded(x, TENSOR_FLOAT), rounded(y, TENSOR_FLOAT)))
