"""Every product adds its terms in pairs, pairs of pairs, and so on."""

from _base import port_with, product

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}


def by_halves(x, y):
    k = x.shape[1]
    if k <= 2:
        return product(x, y)
    return by_halves(x[:, : k // 2], y[: k // 2]) + by_halves(x[:, k // 2 :], y[k // 2 :])


attention = port_with(by_halves)
