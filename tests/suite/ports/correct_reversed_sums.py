"""Every sum runs backwards."""

from _base import port_with, product

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}

attention = port_with(lambda x, y: product(x[:, ::-1], y[::-1]))
