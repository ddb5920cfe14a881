"""Wrong gradients: adjoint equations that are not the derived ones, by rules of rewriting.

The forward equations stay right, so that only the gradients show it. `what` completes "the
gradient with …".
"""

from __future__ import annotations

from typing import Final

from qkvac.spec.wrong_formulas import rule, rules

DETACHED: Final = "Y * 0"
PARTS: Final = ("query", "key", "value")
LETTER: Final = {"query": "q", "key": "k", "value": "v"}

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

PARAMETERS: Final = (
    *(
        rules(
            f"{one}-{two}-weights-gradients-swapped",
            f"the gradients of the {one} and {two} weights swapped",
            {
                f"{one}-weights-source": f"d{LETTER[two]}",
                f"{two}-weights-source": f"d{LETTER[one]}",
            },
        )
        for one, two in (("query", "key"), ("key", "value"), ("query", "value"))
    ),
    *(
        rule(
            *(f"{part}-weights-gradient-zero", f"zeros for the {part} weights"),
            *(f"{part}-weights-gradient", DETACHED, "paiml/aprender#2203"),
        )
        for part in PARTS
    ),
    rule(
        *("output-weights-gradient-zero", "zeros for the output weights"),
        *("output-weights-gradient", DETACHED),
    ),
    *(
        rule(
            *(f"{part}-weights-gradient-transposed", f"the gradient of the {part} weights turned"),
            *(f"{part}-weights-gradient", "Y.T"),
        )
        for part in PARTS
    ),
    rule(
        *("value-weights-gradient-of-context", "dC for dV in the gradient of the value weights"),
        *("value-weights-source", "g"),
    ),
    rule(
        *("gradients-averaged-over-tokens", "the gradients of weights divided by the tokens"),
        *("parameter-gradients", "Y / n"),
        needs="x",
    ),
    rule(
        *("weight-decay-added", "a hundredth of the weights added to their gradients"),
        *("parameter-gradients", "Y + own * 0.01"),
    ),
    rule(
        *("averaged-over-batch", "the gradients of weights averaged over the batch"),
        *("parameter-sums", "mean_to(l, r)"),
    ),
    rule(
        *("of-first-sample", "the gradients of weights from the first sample alone"),
        *("parameter-sums", "first_to(l, r)"),
    ),
    rule(
        *("of-last-sample", "the gradients of weights overwritten by each sample"),
        *("parameter-sums", "last_to(l, r)"),
    ),
    rule(
        "output-cotangent-zero", "zeros for all that stands before Wo", "context-gradient", DETACHED
    ),
    rule(
        *("output-path-not-transposed", "dC = dY Wo instead of dY Woᵀ"),
        *("context-gradient", "dY @ o"),
    ),
    rule(
        *("output-weights-gradient-transposed", "the gradient of the output weights turned"),
        *("output-weights-gradient", "Y.T"),
    ),
    rule(
        *("output-weights-gradient-of-values", "V for C in the gradient of the output weights"),
        *("output-weights-gradient", "merge(v).T @ dY"),
    ),
)

BIASES: Final = (
    rule(
        *("bias-gradients-averaged", "the gradients of biases averaged over the tokens"),
        *("bias-gradients", "Y / n"),
    ),
    rule("bias-gradients-zero", "zeros for the biases", "bias-gradients", DETACHED),
    rules(
        *("query-key-bias-gradients-swapped", "the gradients of the biases of Q and K swapped"),
        {"query-bias-source": "dk", "key-bias-source": "dq"},
    ),
    rule(
        *("value-bias-gradient-of-context", "dC for dV in the gradient of the value bias"),
        *("value-bias-source", "first_row(g)"),
    ),
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

HEADS: Final = (
    rule(
        *("cotangent-heads-by-reshape", "the cotangent's heads split by a reshape alone"),
        *("cotangent-heads", "unswapped(Y)"),
        needs="z",
    ),
    rule(
        *("cotangent-heads-reversed", "the cotangent's heads in reversed order"),
        *("cotangent-heads", "reversed_heads(Y)"),
        needs="H",
    ),
    rule(
        *("gradients-merged-by-reshape", "the gradients of heads merged by a reshape alone"),
        *("backward-merge", "merge(unswapped_back(l))"),
    ),
    rule(
        *("group-gradient-of-first-head", "the gradient of the first query head of each group"),
        *("group-sums", "first_to(l, r)"),
    ),
    rule(
        *("group-gradient-of-last-head", "gradients that heads of a group overwrite"),
        *("group-sums", "last_to(l, r)"),
    ),
    rule(
        *("group-gradients-averaged", "gradients averaged over the heads of a group"),
        *("group-sums", "mean_to(l, r)"),
    ),
    rule(
        *("group-gradients-tiled", "gradients of groups summed as if heads were tiled"),
        *("group-sums", "tiled_to(l, r)"),
    ),
)

MASKS: Final = (
    rule(
        *("mask-gradient-zero", "zeros for the mask", "mask-gradient", DETACHED),
        "ml-explore/mlx#2909",
    ),
    rule(
        *("mask-gradient-not-summed", "a mask's gradient from the first of what shares it"),
        *("mask-sum", "first_to(l, r)"),
    ),
    rule(
        *("mask-gradient-averaged", "a mask's gradient averaged over what shares it"),
        *("mask-sum", "mean_to(l, r)"),
    ),
    rule(
        *("mask-gradient-scaled", "a mask's gradient that is scaled like that of the scores"),
        *("mask-source", "dO"),
        needs="s",
    ),
    rule(
        *("mask-gradient-before-softmax", "dA as the mask's gradient"),
        *("mask-source", "dA"),
    ),
    rule("mask-gradient-negative", "a mask's gradient negated", "mask-gradient", "-Y"),
    rule(
        *("masked-gradient-undefined", "0 times infinity for the gradients of masked scores"),
        *("logits-gradient", "masked_undefined(Y, M)"),
        needs="M",
    ),
    rule(
        *("empty-row-gradient-undefined", "NaN for the gradients of a query without keys"),
        *("logits-gradient", "empty_undefined(Y, M)"),
        needs="G",
    ),
    rule(
        *("empty-row-gradient-uniform", "equal weights in dV for a query without keys"),
        *("value-gradient", "empty_uniform(A, M).T @ g"),
        needs="G",
    ),
)

TABLES: Final = (
    rule(
        *("duplicates-overwritten", "a token's gradient from the last place where it stands"),
        *("scatter", "scatter_last(l, r, t)"),
    ),
    rule(
        *("duplicates-ignored", "a token's gradient from the first place where it stands"),
        *("scatter", "scatter_first(l, r, t)"),
    ),
    rule(
        *("duplicates-averaged", "a token's gradient divided by how often it stands there"),
        *("scatter", "scatter_mean(l, r, t)"),
    ),
    rule(
        *("padding-gradient-zero", "no gradient for the row of token 0"),
        *("scatter", "scatter_unpadded(l, r, t)"),
    ),
    rule(
        *("token-gradients-shifted", "gradients of tokens in the row before"),
        *("token-table-gradient", "next_row(Y)"),
    ),
    rule(
        *("token-gradients-zero", "zeros for the table of tokens"),
        *("token-table-gradient", DETACHED),
    ),
    rule(
        *("position-gradients-shifted", "gradients of positions moved by one row"),
        *("position-table-gradient", "previous_row(Y)"),
    ),
    rule(
        *("position-gradients-reversed", "gradients of positions in reversed order"),
        *("pad", "pad(reversed_rows(l), r)"),
    ),
    rule(
        *("position-gradients-zero", "zeros for the table of positions"),
        *("position-table-gradient", DETACHED),
    ),
    rule(
        *("position-gradients-of-first-sample", "gradients of positions from the first sample"),
        *("pad", "pad_first(l, r)"),
    ),
    rule(
        *("position-gradients-averaged", "gradients of positions divided by the tokens"),
        *("position-table-gradient", "Y / n"),
    ),
)

GRADIENTS: Final = (
    *(*SOFTMAX, *SCALE, *PRODUCTS, *PATHS, *PARAMETERS),
    *(*BIASES, *COTANGENT, *HEADS, *MASKS, *TABLES),
)
