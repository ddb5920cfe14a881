"""Products by Strassen's seven half-size ones: small only beside the largest entries."""

import numpy as np
from _base import port_with, product


def quarters(x):
    rows, columns = x.shape[0] // 2, x.shape[1] // 2
    return x[:rows, :columns], x[:rows, columns:], x[rows:, :columns], x[rows:, columns:]


def strassen(x, y):
    (n, k), m = x.shape, y.shape[1]
    a, b, c, d = quarters(np.pad(x, ((0, n % 2), (0, k % 2))))
    e, f, g, h = quarters(np.pad(y, ((0, k % 2), (0, m % 2))))
    one, two, three = product(a + d, e + h), product(c + d, e), product(a, f - h)
    four, five = product(d, g - e), product(a + b, h)
    six, seven = product(c - a, e + f), product(b - d, g + h)
    top = np.hstack([one + four - five + seven, three + five])
    bottom = np.hstack([two + four, one - two + three + six])
    return np.vstack([top, bottom])[:n, :m]


attention = port_with(strassen)
