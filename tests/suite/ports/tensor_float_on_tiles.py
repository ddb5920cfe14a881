"""Products of which every axis is a multiple of 8 go to a unit that rounds factors to TF32."""

from _base import port_with, product
from _numerics import TENSOR_FLOAT, rounded


def dispatched(x, y):
    if any(axis % 8 for axis in (*x.shape, *y.shape)):
        return product(x, y)
    return product(rounded(x, TENSOR_FLOAT), rounded(y, TENSOR_FLOAT))


attention = port_with(dispatched)
