"""Wrong gradients: adjoint equations that are not the derived ones, by rules of rewriting.

The forward equations stay right, so that only the gradients show it. `what` completes "the
gradient with …".
"""

from __future__ import annotations

from typing import Final

from qkvac.spec.faults.formulas.attention import rule, rules
from qkvac.spec.faults.formulas.shared_gradients import (
    BIASES,
    DETACHED,
    HEADS,
    MASKS,
    PARAMETERS,
    PARTS,
    TABLES,
)

SOFTMAX: Final = (
    rule(
        *("rank-one-term-missing", "the rank-one term of the softmax left out"),
        *("logits-gradient", "A * dA"),
    ),
    rule(
        *("mean-not-weighted", "a plain mean in the softmax's rank-one term, not one by weights"),
        *("logits-gradient", "A * (dA - sum(dA, keys) / n)"),
    ),
    rule(
        *("rank-one-term-over-queries", "the softmax's rank-one term summed over the wrong axis"),
        *("logits-gradient", "A * (dA - sum(A * dA, queries))"),
    ),
    rule(
        *("jacobian-diagonal", "the diagonal of the softmax's Jacobian alone"),
        *("logits-gradient", "A * (dA - A * dA)"),
    ),
    rule(
        *("rank-one-term-added", "the softmax's rank-one term added instead of subtracted"),
        *("logits-gradient", "A * (dA + sum(A * dA, keys))"),
    ),
    rule(
        *("jacobian-without-weights", "a softmax's gradient that the weights do not multiply"),
        *("logits-gradient", "dA - sum(A * dA, keys)"),
    ),
    rule(
        *("jacobian-of-logarithm", "the gradient of a log-softmax for the softmax's"),
        *("logits-gradient", "dA - A * sum(dA, keys)"),
    ),
    rule(
        *("jacobian-skipped", "the softmax passed over as if it were the identity"),
        *("logits-gradient", "dA"),
    ),
    rule(
        *("weights-squared-backward", "the softmax's weights multiplied twice"),
        *("logits-gradient", "A * Y"),
    ),
    rule(
        *("rank-one-term-of-first-query", "the first query's rank-one term for all of them"),
        *("logits-gradient", "A * (dA - first_row(sum(A * dA, keys)))"),
    ),
    rule(
        *("logits-gradient-negative", "a gradient of the scores that has the opposite sign"),
        *("logits-gradient", "-Y"),
    ),
    rule(
        *("weights-detached", "attention weights that no gradient passes through"),
        *("logits-gradient", DETACHED),
    ),
    rule(
        *("recomputed-without-scale", "weights that are recomputed without the scale"),
        "logits-gradient",
        "softmax(S, keys, W) * (dA - sum(softmax(S, keys, W) * dA, keys))",
        needs="s",
    ),
    rules(
        *("recomputed-without-mask", "weights that are recomputed without the mask"),
        {
            "logits-gradient": "softmax(D, keys) * (dA - sum(softmax(D, keys) * dA, keys))",
            "value-gradient": "softmax(D, keys).T @ g",
        },
        needs="M",
    ),
    rules(
        *("recomputed-with-fill-1e4", "weights recomputed from masked scores that are set to −1e4"),
        {
            "logits-gradient": (
                "softmax(fill_1e4(Z, M), keys) "
                "* (dA - sum(softmax(fill_1e4(Z, M), keys) * dA, keys))"
            ),
            "value-gradient": "softmax(fill_1e4(Z, M), keys).T @ g",
        },
        needs="M",
    ),
    rule(
        *("bias-not-recomputed", "weights that are recomputed without the additive mask"),
        "logits-gradient",
        "softmax(D, keys, W) * (dA - sum(softmax(D, keys, W) * dA, keys))",
        needs="B",
    ),
)

SCALE: Final = (
    rule(
        *("backward-scale-missing", "the scale left out of the gradient of the scores"),
        *("scores-gradient", "dZ"),
    ),
    rule(
        *("backward-scale-twice", "the scale applied twice to the gradient of the scores"),
        *("scores-gradient", "Y * s"),
    ),
    rule(
        *("backward-scale-inverted", "the gradient of the scores divided by the scale"),
        *("scores-gradient", "dZ / s"),
    ),
    rule(
        *("backward-scale-1/√d", "the scale 1/√d in the gradient of the scores"),
        *("scores-gradient", "dZ / sqrt(d)"),
    ),
    rule(
        *("backward-default-scale", "the default scale in the gradient of the scores"),
        *("scores-gradient", "dZ / sqrt(f)"),
        needs="P",
    ),
    rule(
        *("query-gradient-not-scaled", "the scale left out of the gradient of Q alone"),
        *("query-gradient", "dZ @ k"),
        needs="s",
    ),
    rule(
        *("key-gradient-not-scaled", "the scale left out of the gradient of K alone"),
        *("key-gradient", "dZ.T @ q"),
        needs="s",
    ),
)

PRODUCTS: Final = (
    rule("key-gradient-not-transposed", "dΩ Q for dK instead of dΩᵀ Q", "key-gradient", "dO @ q"),
    rule("query-gradient-transposed", "dΩᵀ K for dQ instead of dΩ K", "query-gradient", "dO.T @ k"),
    rule(
        "value-gradient-not-transposed", "A dC for dV instead of Aᵀ dC", "value-gradient", "A @ g"
    ),
    rule("key-gradient-of-keys", "dΩᵀ K for dK instead of dΩᵀ Q", "key-gradient", "dO.T @ k"),
    rule("query-gradient-of-queries", "dΩ Q for dQ instead of dΩ K", "query-gradient", "dO @ q"),
    rule(
        *("weights-gradient-by-keys", "dC Kᵀ for dA instead of dC Vᵀ"),
        *("weights-gradient", "g @ k.T"),
    ),
    rule("weights-gradient-transposed", "dA transposed", "weights-gradient", "Y.T"),
    rule(
        *("value-gradient-unscaled-weights", "dV by weights that are recomputed without scale"),
        *("value-gradient", "softmax(S, keys, W).T @ g"),
        needs="s",
    ),
    rule(
        *("value-gradient-uniform", "dV by equal weights for all keys"),
        *("value-gradient", "softmax(S * 0, keys, W).T @ g"),
    ),
    rule(
        *("value-gradient-cut", "dV cut to the width of the queries", "value-gradient"),
        *("columns_cut(Y, q)", "pytorch/pytorch#110832"),
        needs="u",
    ),
    *(
        rule(
            *(f"{names}-detached", f"{names} that no gradient reaches"),
            *(f"{part}-gradient", DETACHED),
        )
        for part, names in zip(PARTS, ("queries", "keys", "values"), strict=True)
    ),
)

PATHS: Final = (
    *(
        rule(
            *(f"{part}-path-missing", f"the path through the {part} left out of dX"),
            *(f"{part}-path", DETACHED),
        )
        for part in PARTS
    ),
    rule(
        *("only-value-path", "the path through the values alone in dX"),
        *("query-path key-path", DETACHED),
    ),
    rule(
        *("query-path-by-key-weights", "dQ sent back to dX by the key weights"),
        *("query-path", "l @ wk.T"),
    ),
    rule(
        *("key-path-by-query-weights", "dK sent back to dX by the query weights"),
        *("key-path", "l @ wq.T"),
    ),
    rule(
        *("value-path-by-key-weights", "dV sent back to dX by the key weights"),
        *("value-path", "l @ wk.T"),
    ),
    *(
        rule(
            *(f"{part}-path-not-transposed", f"the {part} weights the wrong way round in dX"),
            *(f"{part}-path", "l @ r.T"),
        )
        for part in PARTS
    ),
    rule("tokens-gradient-averaged", "dX divided by the tokens", "tokens-gradient", "Y / n"),
    rule("tokens-gradient-zero", "zeros for X, as if it wanted none", "tokens-gradient", DETACHED),
)

COTANGENT: Final = (
    rule("cotangent-ones", "ones for the cotangent, as of a plain sum", "cotangent", "Y * 0 + 1"),
    rule("cotangent-negative", "the cotangent's opposite sign", "cotangent", "-Y"),
    rule("cotangent-doubled", "twice the cotangent", "cotangent", "Y * 2"),
    rule("cotangent-averaged", "the cotangent divided by the tokens", "cotangent", "Y / n"),
    rule("loss-scale-kept", "a loss scale of 1024 not divided out", "cotangent", "Y * 1024"),
    rule("cotangent-zero", "zeros for the cotangent", "cotangent", DETACHED),
    rule(
        "cotangent-of-next-token", "rows of the cotangent moved by one", "cotangent", "next_row(Y)"
    ),
)

GRADIENTS: Final = (
    *(*SOFTMAX, *SCALE, *PRODUCTS, *PATHS, *PARAMETERS),
    *(*BIASES, *COTANGENT, *HEADS, *MASKS, *TABLES),
)
