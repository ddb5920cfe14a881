"""The shelf's own base, in all four dtypes."""

from _base import port

QKVAC = {
    "dtypes": ["float64", "float32", "bfloat16", "float16"],
    "supports": ["layouts", "empty"],
    "arithmetic": {"softmax": "shifted, divided"},
}

attention = port()
