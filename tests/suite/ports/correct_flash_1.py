"""An online softmax, one key at a time; no weights are reported."""

from _blocks import port_by_blocks

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "fused", "blocks": 1}}

attention = port_by_blocks(1)
