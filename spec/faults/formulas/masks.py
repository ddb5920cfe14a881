"""Wrong formulas of masks: boolean, additive and causal ones, and combinations of them."""

from __future__ import annotations

from typing import Final

from qkvac.spec.faults.formulas.attention import rule, rules

COMBINED: Final = (
    rule(
        *("mask-ignored-when-causal", "the causal mask alone where another one is given, too"),
        *("mask", "U", "keras-team/keras#23038"),
        needs="G",
    ),
    rule(
        *("causal-ignored-when-masked", "the given mask alone where a causal one is asked for"),
        *("mask", "G", "keras-team/keras#23038"),
        needs="U",
    ),
    rule("mask-or-causal", "keys that either of two masks keeps", "mask", "either(G, U)"),
    rule(
        *("mask-ignored-in-weights", "weights reported that no mask was applied to"),
        *("softmax", "softmax(D, keys)"),
        needs="M",
    ),
    rule(
        *("mask-ignored-in-context", "the mask ignored in the context, though not in the weights"),
        *("context", "softmax(D, keys) @ v", "huggingface/transformers#30652"),
        needs="M",
    ),
)

GIVEN: Final = (
    rule(
        *("mask-of-tile", "the mask of the first of every 4 queries for all of them", "mask"),
        *("tile_row(M)", "google-research/tabfm#40"),
    ),
    rule("mask-of-any-query", "keys that some query keeps kept for all", "given", "any_row(G)"),
    rule("mask-shifted", "a mask moved by one key", "given", "shifted_key(G)"),
    rule(
        *("mask-reversed", "a mask with the keys in reversed order", "given"),
        "reversed_columns(G)",
    ),
    rule(
        *("mask-along-queries", "a mask of keys laid along the queries", "given"),
        *("along_queries(G, S)", "keras-team/keras#21595"),
    ),
    rule("mask-of-first-head", "the first head's mask for all", "given", "first_head(G)"),
    rule("mask-of-next-head", "each head's mask taken from the next", "given", "next_head(G)"),
    rule("mask-of-first-sample", "the first sample's mask for all", "given", "first_sample(G)"),
    rule(
        *("mask-of-next-sample", "each sample's mask taken from the next", "given"),
        "next_sample(G)",
    ),
    rule(
        *("mask-samples-as-heads", "a mask whose samples are taken for heads", "given"),
        *("samples_as_heads(G, S)", "keras-team/keras-hub#783"),
    ),
    rule(
        *("mask-offset-of-heads", "a mask without heads read at offsets that count them"),
        *("given", "misplaced_samples(G, S)", "pytorch/pytorch#184180"),
    ),
)

CAUSAL: Final = (
    rule("causal-strict", "a causal mask without the query's own key", "causal", "earlier(U)"),
    rule("causal-leaking", "a causal mask that shows the next key", "causal", "leak(U)"),
    rule("causal-upper", "the causal triangle turned over", "causal", "later(U)"),
    rule(
        *("causal-bottom-right", "a causal mask aligned at the last key instead of the first"),
        *("causal", "bottom_right(R)", "ml-explore/mlx#2835", "microsoft/onnxruntime#29020"),
        *("pytorch/pytorch#108108", "onnx/onnx#8068"),
    ),
    rule(
        *("causal-after-past", "a causal mask that takes surplus keys for a past", "causal"),
        *("after_past(R)", "microsoft/onnxruntime#29020"),
    ),
    rule(
        *("causal-decoding", "no causal mask for a single query", "causal", "decoding(R)"),
        "microsoft/onnxruntime#29020",
    ),
    rule(
        *("causal-of-tile", "the causal mask of the first of every 4 queries", "causal"),
        "tile_row(U)",
    ),
)

FILLS: Final = (
    rule(
        *("mask-fill-100", "masked scores set to −100", "softmax"),
        "softmax(fill_100(Z, M), keys)",
    ),
    rule(
        *("mask-fill-1e4", "masked scores set to −1e4", "softmax", "softmax(fill_1e4(Z, M), keys)"),
        "karpathy/minGPT#75",
    ),
    rule(
        *("mask-fill-1e9", "masked scores set to −1e9", "softmax", "softmax(fill_1e9(Z, M), keys)"),
        "tensorflow/tensorflow#55682",
    ),
    rule(
        *("mask-fill-lowest", "masked scores set to the lowest number", "softmax"),
        *("softmax(fill_lowest(Z, M), keys)", "pytorch/pytorch#103963"),
        needs="G",
    ),
    rule(
        *("mask-fill-before-scale", "masked scores set to −1e4 before the scale", "softmax"),
        "softmax(fill_1e4(S, M) * s, keys)",
        needs="!B",
    ),
    rule(
        *("mask-subtracts-1e4", "1e4 subtracted from masked scores", "softmax"),
        "softmax(lowered_1e4(Z, M), keys)",
        needs="!B",
    ),
    rule(
        *("mask-subtracts-1e9", "1e9 subtracted from masked scores", "softmax"),
        *("softmax(lowered_1e9(Z, M), keys)", "pytorch/pytorch#101967"),
        needs="!B",
    ),
    rule(
        *("capped-after-mask", "scores capped at 50 after the mask instead of before", "softmax"),
        *("softmax(cap(fill_lowest(Z, M)), keys)", "microsoft/onnxruntime#28379"),
    ),
    rule(
        *("mask-times-infinity", "a mask multiplied by −∞ and added", "softmax"),
        "softmax(infinity_times(D, M), keys)",
    ),
)

ADDITIVE: Final = (
    rule("bias-scaled", "an additive mask that is scaled, too", "argument", "(S + B) * s"),
    rule("bias-twice-added", "an additive mask added twice", "argument", "Z + B"),
    rule("bias-subtracted", "an additive mask subtracted", "argument", "D - B"),
    rule(
        *("bias-after-softmax", "an additive mask added to the weights", "softmax"),
        "softmax(D, keys, W) + B",
    ),
    rule(
        *("bias-ignored", "an additive mask of which −∞ alone counts", "argument", "D"),
        *("microsoft/onnxruntime#26766",),
        needs="B",
    ),
    rule(
        *("bias-of-first-query", "the first query's additive mask for all", "argument"),
        "D + first_row(B)",
    ),
    rule(
        *("bias-of-first-head", "the first head's additive mask for all", "argument"),
        "D + first_head(B)",
    ),
    rule(
        *("bias-of-next-sample", "each sample's additive mask taken from the next", "argument"),
        "D + next_sample(B)",
    ),
    rule("bias-transposed", "an additive mask that is transposed", "argument", "D + B.T"),
    rules(
        *("bias-zero-keeps", "an additive mask whose zeros alone keep a key"),
        {"given": "zero_keeps(B)", "argument": "D"},
    ),
    rules(
        *("bias-nonzero-keeps", "an additive mask taken for a boolean one"),
        {"given": "nonzero_keeps(B)", "argument": "D"},
    ),
    rules(
        *("bias-negative-drops", "an additive mask whose negative entries drop a key"),
        {"given": "negative_drops(B)", "argument": "D"},
    ),
    rule(
        *("bias-lowest-drops", "the lowest number in an additive mask taken for −∞", "given"),
        "lowest_drops(B)",
    ),
    rules(
        *("bias-infinity-as-1e4", "an additive mask cut at −1e4"),
        {"given": "everything(G)", "argument": "D + floored(B)"},
        "karpathy/minGPT#75",
    ),
)

EMPTY: Final = (
    rule(
        *("empty-row-undefined", "NaN for a query without keys", "softmax"),
        *("empty_undefined(Y, M)", "pytorch/pytorch#103963", "pytorch/pytorch#160064"),
        needs="G",
    ),
    rule(
        *("empty-row-uniform", "equal weights for a query without keys", "softmax"),
        *("empty_uniform(Y, M)", "pytorch/pytorch#103749"),
        needs="G",
    ),
    rule(
        *("empty-row-first-key", "the first key for a query without keys", "softmax"),
        "empty_first(Y, M)",
        needs="G",
    ),
    rule(
        *("empty-row-spreading", "no keys for the query after one without keys", "softmax"),
        "beside_empty(Y, M)",
        needs="G",
    ),
)

MASKS: Final = (*COMBINED, *GIVEN, *CAUSAL, *FILLS, *ADDITIVE, *EMPTY)
