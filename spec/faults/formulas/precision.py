"""Poor arithmetic: the declared formulas, computed worse than the dtype promises.

Made by rewriting, too, with operations that a machine can only carry out. `dtype` is the required
dtype that shows the fault: some are rounding errors in float32 and gross ones in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from qkvac.spec.faults.formulas.attention import Formula
from qkvac.spec.faults.rewriting import Rewrite


@dataclass(frozen=True)
class Poor(Formula):
    """A fault of arithmetic, the dtype that it is demonstrated in."""

    dtype: str = "float32"


def poor(
    name: str,
    what: str,
    place: str,
    text: str,
    *references: str,
    dtype: str = "float32",
    needs: str = "",
) -> Poor:
    rules = tuple(Rewrite(where, text, needs) for where in place.split())
    return Poor(name, what, rules, references, dtype)


PRODUCTS: Final = (
    poor(
        *("tf32-products", "factors of all products rounded to TF32", "product"),
        *(
            "tfloat32(l) @ tfloat32(r)",
            "jax-ml/jax#16349",
            "jax-ml/jax#9973",
            "ml-explore/mlx#3897",
        ),
    ),
    poor(
        "tf32-projections",
        "factors of the projections rounded to TF32",
        "projection",
        "tfloat32(x) @ tfloat32(own)",
    ),
    poor(
        "tf32-scores",
        "factors of the scores rounded to TF32",
        "scores",
        "tfloat32(q) @ tfloat32(k).T",
    ),
    poor(
        "tf32-context",
        "factors of the context rounded to TF32",
        "context",
        "tfloat32(A) @ tfloat32(v)",
    ),
    poor(
        "bfloat16-products",
        "factors of all products rounded to bfloat16",
        "product",
        "bfloat16(l) @ bfloat16(r)",
    ),
    poor(
        "tf32-tiles",
        "TF32 factors where every axis is a multiple of 8",
        "product",
        "tensor_tiles(l, r)",
    ),
    poor(
        "bfloat16-pairs",
        "factors split into two bfloat16 parts, three products of four kept",
        "product",
        "pairs(l, r)",
    ),
    poor("strassen", "Strassen's products", "product", "strassen(l, r)"),
    poor(
        "bfloat16-accumulation",
        "sums of products accumulated in bfloat16",
        "product",
        "sum_in_bfloat16(l, r)",
    ),
    poor(
        "float16-accumulation",
        "sums of products accumulated in float16",
        "product",
        "sum_in_float16(l, r)",
    ),
    poor(
        "float32-products",
        "products in float32",
        "product",
        "product_in_float32(l, r)",
        dtype="float64",
    ),
    poor(
        "last-terms-dropped",
        "terms beyond a multiple of 8 left out of sums",
        "product",
        "without_last_terms(l, r)",
        "thu-ml/SageAttention#377",
    ),
    poor(
        "last-rows-dropped",
        "rows beyond a multiple of 16 never written",
        "context",
        "without_last_rows(A, v)",
        "thu-ml/SageAttention#377",
    ),
    poor("bfloat16-keys", "keys rounded to bfloat16, as in a cache", "scores", "q @ bfloat16(k).T"),
    poor(
        "bfloat16-values", "values rounded to bfloat16, as in a cache", "context", "A @ bfloat16(v)"
    ),
    poor(
        "float16-scores",
        "scores stored in float16",
        "softmax",
        "softmax(float16(Z), keys, W)",
        "pytorch/pytorch#60939",
    ),
    poor(
        "float16-weights",
        "weights rounded to float16 before the values",
        "context",
        "float16(A) @ v",
    ),
    poor(
        "bfloat16-weights",
        "weights rounded to bfloat16 before the values",
        "context",
        "bfloat16(A) @ v",
    ),
)

EXPONENTIALS: Final = (
    poor(
        "no-maximum",
        "no maximum subtracted before the exponential",
        "softmax",
        "no_maximum(Z, W)",
        "jax-ml/jax#37234",
    ),
    poor(
        "global-maximum", "the maximum of all scores subtracted", "softmax", "global_maximum(Z, W)"
    ),
    poor(
        "maximum-from-0",
        "a maximum that is at least 0 subtracted",
        "softmax",
        "maximum_from_0(Z, W)",
    ),
    poor(
        "maximum-of-tile",
        "the maximum of the first of 8 queries subtracted",
        "softmax",
        "maximum_of_first(Z, W)",
    ),
    poor("epsilon-1e-6", "1e-6 added to the denominator", "softmax", "epsilon_6(Z, W)"),
    poor(
        "epsilon-1e-9",
        "1e-9 added to the denominator",
        "softmax",
        "epsilon_9(Z, W)",
        dtype="float64",
    ),
    poor("reciprocal-12-bits", "a reciprocal of 12 bits", "softmax", "short_reciprocal(Z, W)"),
    poor("bfloat16-sum", "the denominator summed in bfloat16", "softmax", "sum_of_bfloat16(Z, W)"),
    poor("cubic-exponential", "a cubic polynomial for the exponential", "softmax", "cubic(Z, W)"),
    poor(
        "quintic-exponential",
        "a polynomial of degree 5 for the exponential",
        "softmax",
        "quintic(Z, W)",
        dtype="float64",
    ),
    poor("schraudolph", "Schraudolph's exponential", "softmax", "exponent_field(Z, W)"),
    poor("compounding", "(1 + x/1024)^1024 for the exponential", "softmax", "compounding(Z, W)"),
    poor("exponent-clamped-20", "exponents clamped at −20", "softmax", "clamped_20(Z, W)"),
    poor("exponent-clamped-80", "exponents clamped at −80", "softmax", "clamped_80(Z, W)"),
    poor("weights-below-1e-6-dropped", "weights under 1e-6 set to 0", "softmax", "thinned_6(Z, W)"),
    poor("weights-below-1e-3-dropped", "weights under 1e-3 set to 0", "softmax", "thinned_3(Z, W)"),
    poor("float16-softmax", "a softmax in float16", "softmax", "softmax_in_float16(Z, W)"),
    poor("bfloat16-softmax", "a softmax in bfloat16", "softmax", "softmax_in_bfloat16(Z, W)"),
    poor(
        "float32-softmax",
        "a softmax in float32",
        "softmax",
        "softmax_in_float32(Z, W)",
        "jax-ml/jax#34114",
        dtype="float64",
    ),
)

BLOCKS: Final = (
    poor(
        "flash-context-stale",
        "blocks of 16 keys, earlier context not rescaled",
        "context",
        "blocks_stale_context(Z, v)",
    ),
    poor(
        "flash-sum-stale",
        "blocks of 16 keys, earlier sums not rescaled",
        "context",
        "blocks_stale_sum(Z, v)",
    ),
    poor(
        "flash-last-block",
        "blocks of 16 keys, of which the last one counts",
        "context",
        "blocks_last_only(Z, v)",
    ),
)

FURTHER: Final = (
    poor("bfloat16-queries", "queries rounded to bfloat16", "scores", "bfloat16(q) @ k.T"),
    poor("float16-values", "values rounded to float16", "context", "A @ float16(v)"),
    poor(
        "tf32-query-projection",
        "factors of Q rounded to TF32",
        "query",
        "tfloat32(x) @ tfloat32(own)",
    ),
    poor(
        "bfloat16-scores", "scores rounded to bfloat16", "softmax", "softmax(bfloat16(Z), keys, W)"
    ),
    poor("int8-scores", "queries and keys in 8 bits", "scores", "eight_bits(q) @ eight_bits(k).T"),
    poor("scores-clipped-30", "scores clipped to ±30", "softmax", "softmax(clipped(Z), keys, W)"),
    poor(
        "flash-maximum-of-block",
        "blocks of 16 keys, each with its own maximum",
        "context",
        "blocks_own_maximum(Z, v)",
    ),
    poor(
        "flash-divided-early",
        "blocks of 16 keys, divided by the sum after each",
        "context",
        "blocks_early_division(Z, v)",
    ),
    poor(
        "float32-context",
        "the context computed in float32",
        "context",
        "product_in_float32(A, v)",
        dtype="float64",
    ),
    poor(
        "float32-scores",
        "scores computed in float32",
        "scores",
        "product_in_float32(q, k.T)",
        dtype="float64",
    ),
    poor(
        "float32-values",
        "values rounded to float32, as in a cache",
        "context",
        "A @ float32(v)",
        dtype="float64",
    ),
    poor(
        "epsilon-1e-12",
        "1e-12 added to the denominator",
        "softmax",
        "epsilon_12(Z, W)",
        dtype="float64",
    ),
)
"""Written after the cases had been fixed."""

MASKED: Final = (
    poor("bias-bfloat16", "an additive mask rounded to bfloat16", "argument", "D + bfloat16(B)"),
    poor("bias-float16", "an additive mask rounded to float16", "argument", "D + float16(B)"),
    poor(
        *("masked-scores-float16", "masked scores in float16, where the lowest number overflows"),
        *("argument", "float16(Z)", "google/flax#982", "keras-team/keras#17571"),
        "huggingface/transformers#17306",
        dtype="float16",
        needs="B",
    ),
    poor(
        *("mask-fill-1e9-float16", "masked scores set to −1e9 in float16, which is −∞", "softmax"),
        *("softmax(float16(fill_1e9(Z, M)), keys)", "google/flax#982"),
        dtype="float16",
        needs="G",
    ),
    poor(
        *("maximum-of-masked", "the maximum of masked scores, too, subtracted", "softmax"),
        "maximum_of_all(Z, M)",
        needs="!B",
    ),
)

LAYERS: Final = (
    poor(
        "linear-bias-bfloat16",
        "a bias, or positions, rounded to bfloat16",
        "sum",
        "l + bfloat16(r)",
    ),
    poor(
        "tokens-bfloat16",
        "a table of tokens rounded to bfloat16",
        "lookup",
        "take(bfloat16(E), i) + r",
    ),
    poor("output-tf32", "factors of Y rounded to TF32", "output", "tfloat32(z) @ tfloat32(o)"),
    poor("embedding-tf32", "embeddings rounded to TF32", "lookup", "tfloat32(Y)"),
)

ARITHMETIC: Final = (*PRODUCTS, *EXPONENTIALS, *BLOCKS, *FURTHER, *MASKED, *LAYERS)
