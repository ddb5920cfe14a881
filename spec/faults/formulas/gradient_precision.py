"""Poor arithmetic in gradients: the derived equations, computed worse than the dtype promises."""

from __future__ import annotations

from typing import Final

from qkvac.spec.faults.formulas.precision import poor

NARROW: Final = (
    poor(
        *("backward-weights-bfloat16", "weights rounded to bfloat16 for the gradients"),
        *("value-gradient", "bfloat16(A).T @ g"),
    ),
    poor(
        *("softmax-gradient-bfloat16", "weights rounded to bfloat16 in the softmax's gradient"),
        *("logits-gradient", "bfloat16(A) * (dA - sum(bfloat16(A) * dA, keys))"),
    ),
    poor(
        *("softmax-gradient-float16", "weights and their gradient rounded to float16"),
        "logits-gradient",
        "float16(A) * (float16(dA) - sum(float16(A) * float16(dA), keys))",
    ),
    poor(
        *("weights-gradient-bfloat16", "dA computed from bfloat16 factors"),
        *("weights-gradient", "bfloat16(g) @ bfloat16(v).T"),
    ),
    poor(
        *("weights-gradient-float16", "dA stored in float16"),
        *("weights-gradient", "float16(Y)"),
    ),
    poor(
        *("scores-gradient-bfloat16", "dΩ rounded to bfloat16 for dQ and dK"),
        *("scores-gradient", "bfloat16(Y)"),
    ),
    poor(
        *("row-sums-of-rounded-context", "the softmax's row sums from a context in bfloat16"),
        *("logits-gradient", "A * (dA - sum(g * bfloat16(A @ v), keys))"),
    ),
    poor(
        *("backward-weights-clipped", "weights under 1e-3 left out of the gradients"),
        *("value-gradient", "thin(A).T @ g"),
    ),
    poor(
        *("gradients-accumulated-bfloat16", "gradients of weights added up in bfloat16"),
        *("parameter-products", "sum_in_bfloat16(l, r)"),
    ),
    poor(
        *("batch-accumulated-bfloat16", "gradients of samples added up in bfloat16"),
        *("parameter-sums", "sum_to_in_bfloat16(l, r)"),
    ),
    poor(
        *("backward-tf32", "factors of products rounded to TF32 in the backward pass alone"),
        *("backward-product", "tfloat32(l) @ tfloat32(r)"),
    ),
    poor(
        *("backward-bfloat16", "factors of products in bfloat16 in the backward pass alone"),
        *("backward-product", "bfloat16(l) @ bfloat16(r)"),
    ),
    poor(
        *("backward-float32", "products in float32 in the backward pass alone"),
        *("backward-product", "product_in_float32(l, r)"),
        dtype="float64",
    ),
    poor(
        *("backward-weights-float32", "weights rounded to float32 for the gradients"),
        *("logits-gradient", "float32(A) * (dA - sum(float32(A) * dA, keys))"),
        dtype="float64",
    ),
    poor(
        *("last-tokens-dropped", "tokens beyond a multiple of 8 left out of gradients of weights"),
        *("parameter-products", "without_last_terms(l, r)"),
    ),
    poor(
        *("token-gradients-bfloat16", "gradients of a token added up in bfloat16"),
        *("scatter", "scatter_in_bfloat16(l, r, t)"),
    ),
)
