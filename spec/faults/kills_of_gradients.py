"""What must catch each fault of gradients, in the profile that it is demonstrated in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LAYER: Final[Mapping[str, tuple[str, ...]]] = {
    "rank-one-term-missing": ("dWq B",),
    "mean-not-weighted": ("dWq B",),
    "rank-one-term-over-queries": ("dWq B",),
    "jacobian-diagonal": ("dWq B",),
    "rank-one-term-added": ("dWq B",),
    "jacobian-without-weights": ("dWq B",),
    "jacobian-of-logarithm": ("dWq B",),
    "jacobian-skipped": ("dWq B",),
    "weights-squared-backward": ("dWq B",),
    "rank-one-term-of-first-query": ("dWq B",),
    "logits-gradient-negative": ("dWq B",),
    "weights-detached": ("dWq B",),
    "recomputed-without-scale": ("dWq B",),
    "backward-scale-missing": ("dWq B",),
    "backward-scale-twice": ("dWq B",),
    "backward-scale-inverted": ("dWq B",),
    "backward-scale-1/√d": ("dWq B",),
    "query-gradient-not-scaled": ("dWq B",),
    "key-gradient-not-scaled": ("dWk B",),
    "key-gradient-not-transposed": ("dWk B",),
    "query-gradient-transposed": ("dWq B",),
    "value-gradient-not-transposed": ("dWv B",),
    "key-gradient-of-keys": ("dWk B",),
    "query-gradient-of-queries": ("dWq B",),
    "weights-gradient-by-keys": ("dWq B",),
    "weights-gradient-transposed": ("dWq B",),
    "value-gradient-unscaled-weights": ("dWv B",),
    "value-gradient-uniform": ("dWv B",),
    "queries-detached": ("dWq B",),
    "keys-detached": ("dWk B",),
    "values-detached": ("dWv B",),
    "query-path-missing": ("dX B",),
    "key-path-missing": ("dX B",),
    "value-path-missing": ("dX B",),
    "only-value-path": ("dX B",),
    "query-path-by-key-weights": ("dX B",),
    "key-path-by-query-weights": ("dX B",),
    "value-path-by-key-weights": ("dX B",),
    "query-path-not-transposed": ("dX B",),
    "key-path-not-transposed": ("dX B",),
    "value-path-not-transposed": ("dX B",),
    "tokens-gradient-averaged": ("dX B",),
    "tokens-gradient-zero": ("dX B",),
    "query-key-weights-gradients-swapped": ("dWq B",),
    "key-value-weights-gradients-swapped": ("dWk B",),
    "query-value-weights-gradients-swapped": ("dWq B",),
    "query-weights-gradient-zero": ("dWq B",),
    "key-weights-gradient-zero": ("dWk B",),
    "value-weights-gradient-zero": ("dWv B",),
    "query-weights-gradient-transposed": ("dWq B",),
    "key-weights-gradient-transposed": ("dWk B",),
    "value-weights-gradient-transposed": ("dWv B",),
    "value-weights-gradient-of-context": ("dWv B",),
    "gradients-averaged-over-tokens": ("dWq B",),
    "weight-decay-added": ("dWv B",),
    "averaged-over-batch": ("dWq B",),
    "of-first-sample": ("dWq B",),
    "of-last-sample": ("dWq B",),
    "cotangent-ones": ("dWq B",),
    "cotangent-negative": ("dWq B",),
    "cotangent-doubled": ("dWq B",),
    "cotangent-averaged": ("dWq B",),
    "loss-scale-kept": ("dWq B",),
    "cotangent-zero": ("dWq B",),
    "cotangent-of-next-token": ("dWq B",),
    "backward-weights-bfloat16": ("dWv B",),
    "softmax-gradient-bfloat16": ("dWq B",),
    "softmax-gradient-float16": ("dWq B",),
    "weights-gradient-bfloat16": ("dX B",),
    "weights-gradient-float16": ("dWk B",),
    "scores-gradient-bfloat16": ("dX B",),
    "row-sums-of-rounded-context": ("dWq B",),
    "backward-weights-clipped": ("dX B",),
    "gradients-accumulated-bfloat16": ("dWv B",),
    "batch-accumulated-bfloat16": ("dWv B",),
    "backward-tf32": ("dWv B",),
    "backward-bfloat16": ("dWv B",),
    "backward-float32": ("dWv B",),
    "backward-weights-float32": ("dWq B",),
    "last-tokens-dropped": ("dWv B",),
    "gradients-accumulated": ("repeat M",),
    "forward-saved": ("dWq B",),
    "graph-freed": ("attention_gradients error",),
    "gradient-missing": ("dWk missing",),
    "weights-gradients-missing": ("dWq missing",),
    "cotangent-strides-ignored": ("dWq B",),
    "cotangent-expansion-ignored": ("dWq B",),
    "cotangent-scaled-in-place": ("unchanged M",),
    "gradient-in-cotangent": ("unchanged M",),
    "gradients-clipped": ("dWq B",),
    "sample-gradients-summed": ("dX B",),
    "gradients-exchanged": ("dWk B",),
    "gradients-per-sample": ("dWq contract",),
    "gradients-float64": ("dWq contract",),
}
"""In `attention_gradients`."""

KERNELS: Final[Mapping[str, tuple[str, ...]]] = {
    "recomputed-without-mask": ("dQ B",),
    "recomputed-with-fill-1e4": ("dV B",),
    "bias-not-recomputed": ("dQ B",),
    "backward-default-scale": ("dQ B",),
    "value-gradient-cut": ("dV B",),
    "cotangent-heads-reversed": ("dQ B",),
    "group-gradient-of-first-head": ("dK B",),
    "group-gradient-of-last-head": ("dK B",),
    "group-gradients-averaged": ("dK B",),
    "group-gradients-tiled": ("dK B",),
    "mask-gradient-zero": ("dmask B",),
    "mask-gradient-not-summed": ("dmask B",),
    "mask-gradient-averaged": ("dmask B",),
    "mask-gradient-scaled": ("dmask B",),
    "mask-gradient-before-softmax": ("dmask B",),
    "mask-gradient-negative": ("dmask B",),
    "masked-gradient-undefined": ("dQ contract",),
    "empty-row-gradient-undefined": ("dQ contract",),
    "empty-row-gradient-uniform": ("dV B",),
}
"""In `scaled_dot_product_attention_gradients`."""

HEADS: Final[Mapping[str, tuple[str, ...]]] = {
    "output-weights-gradient-zero": ("dWo B",),
    "output-cotangent-zero": ("dWq B",),
    "output-path-not-transposed": ("dWq B",),
    "output-weights-gradient-transposed": ("dWo B",),
    "output-weights-gradient-of-values": ("dWo B",),
    "cotangent-heads-by-reshape": ("dWq B",),
    "gradients-merged-by-reshape": ("dWq B",),
}
"""In `multi_head_attention_gradients`."""

BIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "bias-gradients-averaged": ("dbq B",),
    "bias-gradients-zero": ("dbq B",),
    "query-key-bias-gradients-swapped": ("dbk B",),
    "value-bias-gradient-of-context": ("dbv B",),
}
"""In `attention_linear_layers_gradients`."""

TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "duplicates-overwritten": ("dE B",),
    "duplicates-ignored": ("dE B",),
    "duplicates-averaged": ("dE B",),
    "padding-gradient-zero": ("dE B",),
    "token-gradients-shifted": ("dE B",),
    "token-gradients-zero": ("dE B",),
    "position-gradients-shifted": ("dP B",),
    "position-gradients-reversed": ("dP B",),
    "position-gradients-zero": ("dP B",),
    "position-gradients-of-first-sample": ("dP B",),
    "position-gradients-averaged": ("dP B",),
    "token-gradients-bfloat16": ("dE B",),
}
"""In `embedding_gradients`."""

OF_GRADIENTS: Final[Mapping[str, tuple[str, ...]]] = {
    **LAYER,
    **KERNELS,
    **HEADS,
    **BIASES,
    **TABLES,
}

VIEWS: Final = "no case has a cotangent that is a view: `attention` and kernels have"
TURNED: Final = "no case has square weights"
ALONE: Final = "there is one gradient, which has the axes of its input"

EQUIVALENT: Final[Mapping[str, Mapping[str, str]]] = {
    "scaled_dot_product_attention_gradients": {"gradients-per-sample": "there are no weights"},
    "multi_head_attention_gradients": {
        "recomputed-with-fill-1e4": "no case has scores below −1e4",
        "cotangent-strides-ignored": VIEWS,
        "cotangent-expansion-ignored": VIEWS,
    },
    "attention_linear_layers_gradients": {
        "cotangent-strides-ignored": VIEWS,
        "cotangent-expansion-ignored": VIEWS,
        "forward-saved": "no two cases of one shape follow each other",
    },
    "embedding_gradients": {
        "cotangent-strides-ignored": VIEWS,
        "cotangent-expansion-ignored": VIEWS,
        "gradient-in-cotangent": "no gradient is as small as the cotangent",
        "sample-gradients-summed": "no gradient belongs to a sample",
    },
    "causal_attention_gradients": {
        "cotangent-strides-ignored": VIEWS,
        "cotangent-expansion-ignored": VIEWS,
        **dict.fromkeys(
            (
                "query-path-not-transposed",
                "key-path-not-transposed",
                "value-path-not-transposed",
                "query-weights-gradient-transposed",
                "key-weights-gradient-transposed",
                "value-weights-gradient-transposed",
            ),
            TURNED,
        ),
    },
    "dot_product_attention_gradients": {
        "cotangent-strides-ignored": VIEWS,
        "cotangent-expansion-ignored": VIEWS,
        "gradient-missing": ALONE,
        "gradients-per-sample": ALONE,
    },
}
"""Profile → fault → why it changes nothing there that a case of the default tier can show."""
