"""Wrong gradients of what is shared: weights, biases, heads of a group, masks, rows of tables.

Rules of rewriting, as in `qkvac.spec.faults.formulas.gradients`.
"""

from __future__ import annotations

from typing import Final

from qkvac.spec.faults.formulas.attention import rule, rules

DETACHED: Final = "Y * 0"
PARTS: Final = ("query", "key", "value")
LETTER: Final = {"query": "q", "key": "k", "value": "v"}

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
