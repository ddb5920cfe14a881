"""A new maximum rescales the running sum but not the running context."""

from _blocks import port_by_blocks

QKVAC = {"arithmetic": {"softmax": "fused", "blocks": 16}}

attention = port_by_blocks(16, rescale_context=False)
