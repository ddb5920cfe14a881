"""Factors are rounded to TF32 (11 bits) before every product, undeclared."""

from _base import port_with, product
from _numerics import TENSOR_FLOAT, rounded

attention = port_with(lambda x, y: product(rounded(x, TENSOR_FLOAT), rounded(y, TENSOR_FLOAT)))
