"""Wrong formulas of heads, batches, explicit scales, and lengths or widths that differ."""

from __future__ import annotations

from typing import Final

from qkvac.spec.faults.formulas.attention import rule, rules

SCALE: Final = (
    rule(
        *("default-scale", "the default scale whatever is asked for", "scaled", "S / sqrt(f)"),
        *("huggingface/transformers#44380", "pytorch/pytorch#135615"),
    ),
    rule(
        *("scale-and-default", "the default scale beside the given one", "scaled"),
        "Y / sqrt(f)",
        needs="P",
    ),
    rule(
        *("scale-one-ignored", "the default scale where 1 is asked for", "scaled"),
        *("S * scale_unless_one", "huggingface/transformers#44380"),
        needs="P",
    ),
    rule(
        *("scale-zero-ignored", "the default scale where 0 is asked for", "scaled"),
        "S * scale_unless_zero",
        needs="P",
    ),
    rules(
        *("scale-on-queries-and-keys", "queries and keys that are both multiplied by the scale"),
        {"scores": "(q * s) @ (k * s).T", "scaled": "S"},
    ),
    rule("scale-of-values", "the scale of the values' width", "scaled", "S / sqrt(u)"),
    rule("scale-of-head-count", "the scale 1/√h of the number of heads", "scaled", "S / sqrt(H)"),
    rule("scale-by-layer", "a scale divided by the number of a layer", "scaled", "Y / 3"),
)

GROUPS: Final = (
    rule(
        *("groups-tiled", "key/value heads tiled instead of repeated", "repeat"),
        *("tiled_groups(Y, l)", "ekzhang/jax-js#180", "onnx/onnx#7274"),
    ),
    rule(
        *("key-groups-tiled", "key heads tiled, value heads repeated", "key-repeat"),
        "tiled_groups(Y, l)",
    ),
    rule(
        *("value-groups-tiled", "value heads tiled, key heads repeated", "value-repeat"),
        "tiled_groups(Y, l)",
    ),
    rule("groups-reversed", "key/value heads in reversed order", "repeat", "reversed_groups(Y, l)"),
    rule(
        "groups-shifted", "each group's key/value head the next one's", "repeat", "next_group(Y, l)"
    ),
    rule(
        *("first-key-head-for-all", "the first head's keys for all heads", "scores"),
        "q @ first_head(k).T",
        needs="H",
    ),
    rule(
        *("first-value-head-for-all", "the first head's values for all heads", "context"),
        *("A @ first_head(v)", "BobMcDear/attorch#14"),
        needs="H",
    ),
    rule(
        *("next-head-values", "each head's values taken from the next head", "context"),
        "A @ next_head(v)",
        needs="H",
    ),
)

HEADS: Final = (
    rule(
        *("first-head-weights", "the first head's weights for all heads", "softmax"),
        "first_head(Y)",
        needs="H",
    ),
    rules(
        *("weights-averaged", "weights averaged over heads in place of each head's own"),
        {"softmax": "mean_of_heads(Y)", "context": "softmax(Z, keys, W) @ v"},
        needs="H",
    ),
    rule(
        *("softmax-over-heads", "a softmax over heads instead of keys", "softmax"),
        "softmax(Z, heads, W)",
    ),
    rule(
        "queries-of-next-head",
        "queries and keys of different heads",
        "scores",
        "next_head(q) @ k.T",
        needs="H",
    ),
    rule(
        *("tokens-before-heads", "queries, keys and values read as [n, h, d] from [h, n, d]"),
        *("scores", "unswapped_back(q) @ unswapped_back(k).T"),
        needs="H",
    ),
    rule(
        *("values-read-tokens-first", "values read as [n, h, d] from [h, n, d]", "context"),
        "A @ unswapped_back(v)",
        needs="H",
    ),
    rule(
        *("heads-interleaved", "heads of every h-th column instead of consecutive ones", "split"),
        "interleaved(Y)",
    ),
    rule(
        *("queries-interleaved", "queries, but not keys, split into every h-th column"),
        *("scores", "interleaved(q) @ k.T", "jzhang38/TinyLlama#24"),
        needs="H",
    ),
    rule(
        *("merged-interleaved", "heads merged column by column in turn", "merge"),
        "merge(uninterleaved(l))",
    ),
    rules(
        *("fused-weights-misread", "fused weights stored head by head, read as three blocks"),
        {
            "query": "x @ merge(fused_0(split(wq, H), split(wk, H), split(wv, H)))",
            "key": "x @ merge(fused_1(split(wq, H), split(wk, H), split(wv, H)))",
            "value": "x @ merge(fused_2(split(wq, H), split(wk, H), split(wv, H)))",
        },
        "lablup/mlxcel#928",
    ),
)

OUTPUT: Final = (
    rule("output-unprojected", "merged heads, unprojected, for Y", "output", "first(z.T, y).T"),
    rule(
        *("output-weights-transposed", "the transposed output weights", "output", "z @ o.T"),
        "lablup/mlxcel#926",
    ),
    rule("output-residual", "a residual connection, Y + X", "output", "Y + first(x.T, y).T"),
    rule(
        *("output-of-first-head", "the first head alone for Y", "output"),
        "merge(only_first_head(split(z, H))) @ o",
    ),
    rule(
        *("output-of-mean-head", "the mean of all heads in each head's place for Y", "output"),
        "merge(mean_of_heads(split(z, H))) @ o",
    ),
    rule(
        *("output-of-reread-heads", "heads projected that were merged by a reshape alone"),
        *("output", "merge(unswapped_back(split(z, H))) @ o", "jsbaan/transformer-from-scratch#6"),
    ),
    rule("output-of-queries", "queries projected for Y", "output", "merge(q) @ o"),
    rule("output-scaled", "an output that is scaled, too", "output", "Y * s"),
)

BATCHES: Final = (
    rule(
        *("first-sample-keys", "the first sample's keys for all samples", "scores"),
        "q @ first_sample(k).T",
    ),
    rule(
        *("first-sample-values", "the first sample's values for all samples", "context"),
        "A @ first_sample(v)",
    ),
    rule(
        *("next-sample-values", "each sample's values taken from the next", "context"),
        "A @ next_sample(v)",
    ),
    rule("samples-reversed", "samples in reversed order", "context", "reversed_samples(Y)"),
    rule(
        *("first-sample-weights", "the first sample's weights for all", "softmax"),
        "first_sample(Y)",
    ),
    rule(
        *("softmax-of-batch", "one softmax over the keys of all samples", "softmax"),
        "softmax_of_samples(Z, W)",
    ),
    rule("mean-of-batch", "the mean of all samples for C", "context", "mean_of_samples(Y)"),
    rule(
        *("only-first-sample", "zeros for all samples but the first", "context"),
        "only_first_sample(Y)",
    ),
)

SIZES: Final = (
    rule(
        "keys-cut",
        "no weight for keys beyond the number of queries",
        "softmax",
        "keys_cut(Z, W)",
        needs="R",
    ),
    rule(
        "queries-cut",
        "zeros for queries beyond the number of keys",
        "context",
        "rows_cut(Y, A)",
        needs="R",
    ),
    rule(
        *("values-cut", "zeros for columns of V beyond the width of Q", "context"),
        *("columns_cut(Y, q)", "pytorch/pytorch#110832"),
        needs="u",
    ),
)

HEADED: Final = (*SCALE, *GROUPS, *HEADS, *OUTPUT, *BATCHES, *SIZES)
