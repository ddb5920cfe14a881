"""Products of factors split into two bfloat16 parts, the smallest term left out."""

from _base import port_with, product
from _numerics import BFLOAT16, rounded


def split(x):
    high = rounded(x, BFLOAT16)
    return high, rounded(x - high, BFLOAT16)


def three_products(x, y):
    (high, low), (top, rest) = split(x), split(y)
    return product(low, top) + product(high, rest) + product(high, top)


attention = port_with(three_products)
