"""Wrong formulas: equations that are not the declared ones, by rules of rewriting.

`what` completes "computed with …". Each entry has a rule (sometimes two), and applies to every
profile and variant in which the rule finds its place and the shapes fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from qkvac.spec.faults.rewriting import Rewrite


@dataclass(frozen=True)
class Formula:
    """A fault that is made by rewriting."""

    name: str
    what: str
    rules: tuple[Rewrite, ...] = field(repr=False)
    also_known_as: tuple[str, ...] = ()


def rule(name: str, what: str, place: str, text: str, *references: str, needs: str = "") -> Formula:
    """One rewrite, or one for each place in `place`, given as "place place"."""
    rules = tuple(Rewrite(where, text, needs) for where in place.split())
    return Formula(name, what, rules, references)


def rules(
    name: str, what: str, places: dict[str, str], *references: str, needs: str = ""
) -> Formula:
    """Several rewrites, each with a text of its own."""
    made = tuple(Rewrite(where, text, needs) for where, text in places.items())
    return Formula(name, what, made, references)


SCALE: Final = (
    rule(
        *("no-scale", "scores that are not scaled", "scaled", "S"),
        *("mlc-ai/mlc-llm#3426", "huggingface/transformers#44380"),
    ),
    rule("scale-1/c", "the scale 1/c instead of 1/√c", "scaled", "S * s * s"),
    rule("scale-√c", "the scale √c instead of 1/√c", "scaled", "S / s"),
    rule("scale-1/√d", "the scale 1/√d instead of 1/√c", "scaled", "S / sqrt(d)"),
    rule("scale-1/d", "the scale 1/d instead of 1/√c", "scaled", "S / d"),
    rule("scale-1/√n", "the scale 1/√n instead of 1/√c", "scaled", "S / sqrt(n)"),
    rule("scale-1/n", "the scale 1/n instead of 1/√c", "scaled", "S / n"),
    rule(
        *("scale-of-all-heads", "the scale of the whole width instead of one head's"),
        *("scaled", "S / sqrt(e)", "lucidrains/vit-pytorch#65", "karpathy/ng-video-lecture#6"),
    ),
    rule(
        *("scale-whole-root", "the scale 1/⌊√c⌋ instead of 1/√c", "scaled"),
        "S * scale_with_whole_root",
    ),
    rule(
        *("scale-1/8", "the scale 1/8, for a width of 64, instead of 1/√c", "scaled", "S / 8"),
        "BobMcDear/attorch#14",
    ),
    rule("scale-negative", "the scale −1/√c instead of 1/√c", "scaled", "-Y"),
    rule("scale-half", "the scale 1/(2√c) instead of 1/√c", "scaled", "Y / 2"),
    rule("scale-1/√(c+1)", "the scale 1/√(c + 1) instead of 1/√c", "scaled", "S / sqrt(c + 1)"),
    rule("scale-epsilon", "the scale 1/(√c + 1e-6)", "scaled", "S * scale_with_epsilon"),
    rule("scale-bfloat16", "a scale rounded to bfloat16", "scaled", "S * scale_in_bfloat16"),
    rule("scale-float32", "a scale rounded to float32", "scaled", "S * scale_in_float32"),
    rule(
        *("scale-outside", "the scale outside the softmax instead of inside", "softmax"),
        "softmax(S, keys, W) * s",
    ),
    rule("scale-also-outside", "the scale inside and outside the softmax", "softmax", "Y * s"),
    rule("scale-on-context", "a context that is scaled, too", "context", "Y * s"),
)

SOFTMAX: Final = (
    rule(
        *("softmax-over-queries", "a softmax over the wrong axis", "softmax"),
        *("softmax(Z, queries, W)", "PetrochukM/PyTorch-NLP#2"),
    ),
    rule("no-softmax", "scaled scores in place of weights, without a softmax", "softmax", "Z"),
    rule("softmax-twice", "a softmax of the softmax", "softmax", "softmax(Y, keys, W)"),
    rule(
        *("base-2", "powers of 2 instead of e", "softmax"),
        "softmax(Z * 0.6931471805599453, keys, W)",
    ),
    rule("not-normalised", "exponentials that nothing divides", "softmax", "exponential(Z, W)"),
    rule(
        *("normalised-over-queries", "exponentials divided by the sums of columns", "softmax"),
        "over_columns(Z, W)",
    ),
    rule("divided-by-n", "exponentials divided by n", "softmax", "by_count(Z, W)"),
    rule("no-exponential", "scores divided by their sum, without e^x", "softmax", "shares(Z, W)"),
    rule("sigmoid", "a sigmoid of each score in place of the softmax", "softmax", "sigmoids(Z, W)"),
    rule("best-key-only", "a weight of 1 for the best key alone", "softmax", "best_only(Z, W)"),
    rule("logarithms", "logarithms of the weights", "softmax", "logarithms(Z, W)"),
    rule("softmax-of-all", "one softmax over all entries", "softmax", "softmax_of_all(Z, W)"),
    rule("sink", "one more key with score 0 and no value", "softmax", "sink(Z, W)"),
    rule("of-transposed-scores", "weights of Ωᵀ", "softmax", "softmax(Z.T, keys, W)"),
    rule("weights-transposed", "weights that are transposed afterwards", "softmax", "Y.T"),
    rule("absolute-scores", "weights of |Ω|", "softmax", "softmax(absolute(Z), keys, W)"),
    rule("capped", "scores capped at 50 by tanh", "softmax", "softmax(cap(Z), keys, W)"),
    rule(
        *("distance-penalty", "scores lowered by the distance of key and query", "softmax"),
        "softmax(penalised(Z), keys, W)",
    ),
    rule(
        *("maximum-of-columns", "the maximum of each column subtracted", "softmax"),
        "softmax(Z - column_maximum(Z), keys, W)",
    ),
    rule("first-query-for-all", "the first query's weights for all", "softmax", "first_row(Y)"),
    rule(
        *("padding-counted", "keys padded to a multiple of 8, and the padding counted"),
        *("softmax", "padded(Z, W)", "thu-ml/SageAttention#377"),
    ),
    rule(
        *("tail-keys-dropped", "no weight for keys beyond a multiple of 16", "softmax"),
        *("tail_dropped(Z, W)", "thu-ml/SageAttention#377"),
    ),
)

SCORES: Final = (
    rule("scores-transposed", "scores K Qᵀ instead of Q Kᵀ", "scores", "Y.T"),
    rule("key-not-transposed", "scores Q K, keys not transposed", "scores", "q @ k"),
    rule("query-with-query", "scores Q Qᵀ", "scores", "q @ q.T"),
    rule("key-with-key", "scores K Kᵀ", "scores", "k @ k.T"),
    rule("scores-of-tokens", "scores X Xᵀ of unprojected tokens", "scores", "x @ x.T"),
    rule("query-with-token", "scores Q Xᵀ of unprojected keys", "scores", "q @ x.T"),
    rule("token-with-key", "scores X Kᵀ of unprojected queries", "scores", "x @ k.T"),
    rule("scores-absolute", "|Q Kᵀ| for Ω", "scores", "absolute(Y)"),
    rule("scores-negative", "−Q Kᵀ for Ω", "scores", "-Y"),
    rule("scores-pre-scaled", "Ω scaled already, and scaled again", "scores", "Y * s"),
    rule("cosines", "queries and keys of length 1", "scores", "unit(q) @ unit(k).T"),
    rule("keys-reversed", "keys in reversed order", "scores", "q @ reversed_rows(k).T"),
)

PROJECTIONS: Final = (
    *(
        rule(f"{part}-unprojected", f"{part} X[:, :c], unprojected", part, "first(x.T, c).T")
        for part in ("query", "key", "value")
    ),
    *(
        rule(
            *(f"{part}-weights-transposed", f"the transposed {part} weights", part),
            *("x @ own.T", "lablup/mlxcel#926"),
        )
        for part in ("query", "key", "value")
    ),
    *(
        Formula(
            f"{one}-{two}-swapped",
            f"{one} and {two} weights swapped",
            (Rewrite(one, f"x @ w{two[0]}"), Rewrite(two, f"x @ w{one[0]}")),
        )
        for one, two in (("query", "key"), ("key", "value"), ("query", "value"))
    ),
    *(
        rule(f"{part}-of-{other}-weights", f"the {other} weights for the {part}", part, text)
        for part, other, text in (
            ("query", "key", "x @ wk"),
            ("query", "value", "x @ wv"),
            ("key", "query", "x @ wq"),
            ("key", "value", "x @ wv"),
            ("value", "query", "x @ wq"),
            ("value", "key", "x @ wk"),
        )
    ),
    *(
        rule(f"{part}-projected-twice", f"the {part} projected twice", part, "Y @ own")
        for part in ("query", "key", "value")
    ),
    rule("no-bias", "a bias, or positions, left out", "sum", "l"),
    rule("bias-twice", "a bias, or positions, added twice", "sum", "l + r + r"),
)

CONTEXT: Final = (
    rule("context-of-transposed-weights", "Aᵀ V for C", "context", "A.T @ v"),
    rule("context-of-scores", "Ω V for C, scores used for weights", "context", "S @ v"),
    rule("context-of-scaled-scores", "scaled scores used for weights in C", "context", "Z @ v"),
    rule("context-of-keys", "A K for C", "context", "A @ k"),
    rule("context-of-queries", "A Q for C", "context", "A @ q"),
    rule("context-of-tokens", "A X[:, :c] for C", "context", "A @ first(x.T, c).T"),
    rule("context-uniform", "the plain mean of V for C", "context", "softmax(S * 0, keys) @ v"),
    rule("context-summed", "row sums of A times V for C", "context", "sum(A, keys) * v"),
    rule(
        "context-residual", "a residual connection, C + X[:, :c]", "context", "Y + first(x.T, c).T"
    ),
    rule("context-plus-values", "V added to C", "context", "Y + v"),
    rule("context-plus-queries", "Q added to C", "context", "Y + q"),
    rule("context-of-first-query", "the first query's context for all", "context", "first_row(Y)"),
    rule("context-rows-shifted", "rows of C moved by one", "context", "next_row(Y)"),
    rule("context-columns-reversed", "columns of V reversed", "context", "reversed_columns(Y)"),
    rule("weights-applied-twice", "A A V for C", "context", "A @ Y"),
    rule("values-reread", "V read with rows and columns exchanged", "context", "A @ reread(v)"),
)

MASKS: Final = (
    rule("causal-unasked", "a causal mask that nobody asked for", "softmax", "softmax(Z, keys, T)"),
    rule(
        *("own-token-excluded", "no attention of a token to itself", "softmax"),
        "softmax(Z, keys, invert(T & T.T))",
    ),
    rule(
        *("mask-ignored", "the mask ignored", "softmax", "softmax(D, keys)"),
        *("keras-team/keras#23038", "huggingface/transformers#30652"),
        needs="M",
    ),
    rule("mask-strict", "a token hidden from itself by the mask", "mask", "M & invert(T.T)"),
    rule("mask-leaking", "a mask that keeps one key too many", "mask", "leak(M)"),
    rule("mask-transposed", "a transposed mask", "mask", "M.T"),
    rule(
        *("mask-inverted", "a mask taken for its opposite", "mask", "invert(M)"),
        *(
            "lucidrains/x-transformers#160",
            "pytorch/pytorch#170415",
            "NVIDIA/TransformerEngine#614",
        ),
    ),
    rule(
        *("mask-after-softmax", "the mask applied to the weights", "softmax"),
        "zeroed(softmax(D, keys), M)",
    ),
    rule(
        *("mask-fill-0", "masked scores set to 0", "softmax", "softmax(zeroed(Z, M), keys)"),
        "karpathy/minGPT#75",
    ),
    rule(
        *("mask-of-first-query", "the first query's mask for all", "mask", "first_row(M)"),
        "google-research/tabfm#40",
    ),
)

HEADS: Final = (
    rule(
        *("heads-by-reshape", "heads split by a reshape alone", "split", "unswapped(Y)"),
        "reczoo/FuxiCTR#30",
    ),
    rule(
        *("merged-by-reshape", "heads merged by a reshape alone", "merge"),
        *("merge(unswapped_back(l))", "jsbaan/transformer-from-scratch#6"),
    ),
    rule("heads-reversed", "heads merged in reversed order", "merge", "merge(reversed_heads(l))"),
    rule(
        *("first-head-for-all", "the first head's keys and values for all", "repeat"),
        *("first_head(Y)", "BobMcDear/attorch#14"),
    ),
)

FURTHER: Final = (
    rule(
        "values-of-next-token",
        "each token's value taken from the next",
        "context",
        "A @ next_row(v)",
    ),
    rule(
        "keys-of-next-token", "each token's key taken from the next", "scores", "q @ next_row(k).T"
    ),
    rule(
        *("query-columns-reversed", "columns of Q in another order than those of K", "scores"),
        *("reversed_columns(q) @ k.T", "jzhang38/TinyLlama#24"),
    ),
    rule("scale-doubled", "the scale 2/√c instead of 1/√c", "scaled", "Y * 2"),
    rule(
        *("weights-smoothed", "weights mixed with a tenth of uniform ones", "softmax"),
        "Y * 0.9 + softmax(S * 0, keys, W) * 0.1",
    ),
    rule("weights-squared", "squared weights", "softmax", "Y * Y"),
    rule("weights-symmetric", "weights made symmetric, (A + Aᵀ)/2", "softmax", "(Y + Y.T) / 2"),
    rule("scores-symmetric", "scores made symmetric, (Ω + Ωᵀ)/2", "scores", "(Y + Y.T) / 2"),
    rule("query-negative", "queries of the opposite sign", "query", "-Y"),
    rule(
        *("context-centred", "the mean of V subtracted from C", "context"),
        "Y - softmax(S * 0, keys) @ v",
    ),
)
"""Written after the cases had been fixed."""

FORMULAS: Final = (*SCALE, *SOFTMAX, *SCORES, *PROJECTIONS, *CONTEXT, *MASKS, *HEADS, *FURTHER)
