"""An online softmax, 13 keys at a time, which divides no usual length; no weights are reported."""

from _blocks import port_by_blocks

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "fused", "blocks": 13}}

attention = port_by_blocks(13)
