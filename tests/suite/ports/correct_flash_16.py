"""An online softmax, 16 keys at a time; no weights are reported."""

from _blocks import port_by_blocks

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "fused", "blocks": 16}}

attention = port_by_blocks(16)
