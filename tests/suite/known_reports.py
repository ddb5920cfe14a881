"""The table of publicly reported faults that `qkvac.tests.suite.known_faults` documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Entry:
    """A kind of fault, and the public reports of it, as owner/repository#number."""

    kind: str
    reports: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    """Fault of the catalogue, case id."""
    place: str = ""
    """Where the suite deals with it, if that is no case."""


SDPA: Final = "scaled_dot_product_attention"
MAIN: Final = "2x6x3x5x9x7x4"
SQUARE: Final = "2x3x3x5x5x7x7"
UNGROUPED: Final = "2x3x3x5x9x7x4"
COLLISION: Final = "3x3x3x5x9x7x4"
TILES: Final = "1x2x1x33x65x64x24"
LAYER: Final = "33x30x21x10x3"


def _kind(kind: str, reports: str, *pairs: str) -> Entry:
    """An entry; reports are separated by blanks, a pair is "fault case"."""
    split = (pair.split() for pair in pairs)
    return Entry(kind, tuple(reports.split()), tuple((fault, case) for fault, case in split))


def _place(kind: str, reports: str, place: str) -> Entry:
    return Entry(kind, tuple(reports.split()), (), place)


MASKS: Final = (
    _kind(
        "a query that may see no key",
        "pytorch/pytorch#103963 pytorch/pytorch#103749 pytorch/pytorch#160064",
        f"empty-row-undefined {SDPA}/empty-row/boolean/{SQUARE}",
        f"empty-row-uniform {SDPA}/empty-row/additive/{UNGROUPED}",
        f"mask-fill-lowest {SDPA}/empty-sample/boolean/{MAIN}",
        f"empty-row-spreading {SDPA}/empty-row/boolean/{SQUARE}",
        f"empty-row-first-key {SDPA}/but-first/boolean-causal/{SQUARE}",
        f"empty-row-gradient-undefined {SDPA}_gradients/empty-row/boolean/{SQUARE}",
        f"empty-row-gradient-uniform {SDPA}_gradients/empty-row/additive/{UNGROUPED}",
    ),
    _kind(
        "garbage where nobody may look",
        "pytorch/pytorch#101967",
        f"mask-subtracts-1e9 {SDPA}/garbage/boolean/{MAIN}",
        f"mask-subtracts-1e4 {SDPA}/garbage/causal/{MAIN}",
        f"maximum-of-masked {SDPA}/garbage/boolean/{MAIN}",
    ),
    _kind(
        "a mask that masks nothing changes the result",
        "openvinotoolkit/openvino#31630",
        f"mask-inverted {SDPA}/all-kept/boolean/{UNGROUPED}",
        f"bias-zero-keeps {SDPA}/mask-LxS/additive/{UNGROUPED}",
    ),
    _kind(
        "a mask of samples meets the axis of heads",
        "keras-team/keras-hub#783",
        f"mask-samples-as-heads {SDPA}/mask-Bx1x1xS/boolean/{COLLISION}",
        f"mask-of-next-sample {SDPA}/mask-Bx1x1xS/boolean/{COLLISION}",
    ),
    _kind(
        "a mask of keys on the wrong axis",
        "keras-team/keras#21595 keras-team/keras#21483",
        f"mask-along-queries {SDPA}/mask-Bx1x1xS/boolean/{COLLISION}",
    ),
    _kind(
        "one query's mask for a whole chunk",
        "google-research/tabfm#40",
        f"mask-of-tile {SDPA}/band/boolean/1x2x1x65x33x64x24",
        f"mask-of-first-query {SDPA}/normal/boolean/{MAIN}",
    ),
    _kind(
        "True drops instead of keeps",
        "lucidrains/x-transformers#160 pytorch/pytorch#170415 NVIDIA/TransformerEngine#614",
        f"mask-inverted {SDPA}/one-kept/boolean/{SQUARE}",
        f"mask-inverted {SDPA}/one-kept/boolean/{MAIN}",
    ),
    _kind(
        "a mask that broadcasts, read at wrong offsets",
        "pytorch/pytorch#184180",
        f"mask-offset-of-heads {SDPA}/mask-Bx1xLxS/boolean/{UNGROUPED}",
        f"mask-of-first-head {SDPA}/mask-1xhxLxS/boolean/{UNGROUPED}",
    ),
    _kind(
        "a constant that scores can fall below",
        "karpathy/minGPT#75",
        f"mask-fill-1e4 {SDPA}/below/causal/{MAIN}",
        f"mask-fill-100 {SDPA}/below/causal/{MAIN}",
        "mask-fill-1e4 causal_attention/ranked-below/33x20x7",
    ),
    _kind(
        "a mask constant that overflows in half precision",
        "google/flax#982 keras-team/keras#17571 huggingface/transformers#17306",
        f"masked-scores-float16 {SDPA}/half-minimum/additive-scale/{MAIN}",
        f"mask-fill-1e9-float16 {SDPA}/empty-row/boolean/{SQUARE}",
    ),
    _kind(
        "order of scale, cap and mask",
        "microsoft/onnxruntime#28379 onnx/onnx#7867 onnx/onnx#7913",
        f"bias-scaled {SDPA}/normal/additive-scale/{MAIN}",
        f"capped-after-mask {SDPA}/normal/boolean/{MAIN}",
        f"bias-after-softmax {SDPA}/mask-LxS/additive/{UNGROUPED}",
    ),
    _kind(
        "a bias that a path ignores",
        "microsoft/onnxruntime#26766",
        f"bias-ignored {SDPA}/mask-LxS/additive/{UNGROUPED}",
    ),
    _kind(
        "a penalty added inside what is compiled",
        "tensorflow/tensorflow#55682 huggingface/transformers#16838",
        f"bias-ignored {SDPA}/penalty/additive-scale/{MAIN}",
        f"bias-lowest-drops {SDPA}/penalty-row/additive/2x3x3x5x9x4x6",
    ),
    _kind(
        "a mask in another precision than the queries",
        "pytorch/pytorch#191612",
        f"bias-float16 {SDPA}/mask-LxS/additive/{UNGROUPED}",
        f"bias-bfloat16 {SDPA}/mask-LxS/additive/{UNGROUPED}",
    ),
    _kind(
        "where the causal triangle is pinned",
        "ml-explore/mlx#2835 ml-explore/mlx#2967 pytorch/pytorch#108108",
        f"causal-bottom-right {SDPA}/normal/causal/{MAIN}",
        f"causal-bottom-right {SDPA}/normal/causal/2x6x3x9x5x7x4",
        f"causal-after-past {SDPA}/normal/causal/{MAIN}",
        "causal-upper causal_attention/uniform/33x20x7",
    ),
    _kind(
        "a single query with a causal mask",
        "microsoft/onnxruntime#29020 onnx/onnx#8068",
        f"causal-decoding {SDPA}/normal/causal/2x6x3x1x4x7x5",
    ),
    _kind(
        "causal no longer, as soon as another flag is set",
        "keras-team/keras#23038 keras-team/keras#23040",
        f"causal-ignored-when-masked {SDPA}/all-kept/boolean-causal/{SQUARE}",
        f"mask-ignored-when-causal {SDPA}/but-first/boolean-causal/{SQUARE}",
        f"mask-or-causal {SDPA}/holes/additive-causal/{MAIN}",
        f"mask-ignored {SDPA}/scale-third/causal-scale/{MAIN}",
    ),
    _kind(
        "weights that were asked for, and no mask",
        "huggingface/transformers#30652",
        f"mask-ignored-in-weights multi_head_attention/uniform/causal/{LAYER}",
        "mask-ignored-in-context causal_attention/ranked/33x20x7",
    ),
)

REST: Final = (
    _kind(
        "an explicit scale that a path ignores",
        "huggingface/transformers#44380 huggingface/transformers#44397",
        f"default-scale {SDPA}/scale-half/scale/{MAIN}",
        f"scale-one-ignored {SDPA}/scale-one/scale/{MAIN}",
        f"scale-by-layer {SDPA}/scale-third/causal-scale/{MAIN}",
    ),
    _kind(
        "an explicit scale lost by an export",
        "pytorch/pytorch#135615 pytorch/pytorch#125158 pytorch/pytorch#135710",
        f"default-scale {SDPA}/normal/additive-scale/{MAIN}",
        f"scale-and-default {SDPA}/normal/boolean-scale/{MAIN}",
    ),
    _kind(
        "no scale",
        "mlc-ai/mlc-llm#3426",
        f"no-scale {SDPA}/normal/plain/{TILES}",
        f"no-scale multi_head_attention/normal/plain/{LAYER}",
    ),
    _kind(
        "the scale of another width",
        "lucidrains/vit-pytorch#65 karpathy/ng-video-lecture#6",
        f"scale-of-all-heads multi_head_attention/normal/causal/{LAYER}",
        f"scale-of-values {SDPA}/normal/plain/{MAIN}",
    ),
    _kind(
        "heads split by a reshape alone",
        "reczoo/FuxiCTR#30",
        f"heads-by-reshape multi_head_attention/normal/plain/{LAYER}",
    ),
    _kind(
        "heads merged by a reshape alone",
        "jsbaan/transformer-from-scratch#6",
        f"merged-by-reshape multi_head_attention/lookups/plain/{LAYER}",
        f"output-of-reread-heads multi_head_attention/lookups/plain/{LAYER}",
    ),
    _kind(
        "key/value heads tiled instead of repeated",
        "ekzhang/jax-js#180 onnx/onnx#7274",
        f"groups-tiled {SDPA}/normal/plain/{MAIN}",
        f"groups-tiled {SDPA}/normal/plain/2x6x2x5x7x4x3",
        f"value-groups-tiled {SDPA}/head-id/plain/{MAIN}",
    ),
    _kind(
        "the number of a head taken from strides",
        "BobMcDear/attorch#14",
        f"head-number-from-strides {SDPA}/layout-head-id/plain/{MAIN}",
        f"first-head-for-all {SDPA}/head-id/plain/{MAIN}",
        f"first-sample-values {SDPA}/sample-id/plain/{MAIN}",
    ),
    _kind(
        "fused weights split in another order than stored",
        "lablup/mlxcel#928",
        "fused-weights-misread multi_head_attention/normal/plain/5x8x6x4x2",
    ),
    _kind(
        "weights of the other layout, where they are square",
        "lablup/mlxcel#926 huggingface/transformers#311",
        "query-weights-transposed multi_head_attention/ternary/plain/16x16x16x16x4",
        "output-weights-transposed multi_head_attention/ternary/plain/16x16x16x16x4",
        "value-weights-transposed attention_linear_layers/normal/plain/16x16x16",
        "key-weights-transposed causal_attention/ternary/16x16x16",
    ),
    _kind(
        "columns of queries and keys in different orders",
        "jzhang38/TinyLlama#24 huggingface/transformers#25199",
        f"queries-interleaved multi_head_attention/lookups/plain/{LAYER}",
        "query-columns-reversed attention/normal/33x20x7",
    ),
    _kind(
        "scores that overflow before they are scaled",
        "pytorch/pytorch#60939 ultralytics/ultralytics#24990",
        f"float16-scores {SDPA}/lookup-huge/plain/{SQUARE}",
    ),
    _kind(
        "very large scores",
        "jax-ml/jax#37234",
        f"no-maximum {SDPA}/lookup-huge/plain/{SQUARE}",
        "no-maximum causal_attention/ranked/33x20x7",
    ),
    _kind(
        "a softmax over another axis",
        "PetrochukM/PyTorch-NLP#2",
        f"softmax-over-queries {SDPA}/normal/plain/{MAIN}",
        f"softmax-over-heads multi_head_attention/normal/plain/{LAYER}",
        "softmax-over-queries dot_product_attention/normal/33x20",
    ),
    _kind(
        "views whose strides are ignored",
        "pytorch/pytorch#181133 pytorch/pytorch#163597 PriorLabs/TabPFN#888",
        f"memory-order-misread {SDPA}/layout-F/plain/{UNGROUPED}",
        f"steps-ignored {SDPA}/layout-strided/plain/{UNGROUPED}",
        f"mask-strides-ignored {SDPA}/layout-mask-F/boolean/{UNGROUPED}",
    ),
    _kind(
        "one operand alone in another layout",
        "ROCm/pytorch#3230 flagos-ai/FlagGems#5896",
        f"value-strides-ignored {SDPA}/layout-V-heads/plain/{UNGROUPED}",
        f"query-strides-ignored {SDPA}/layout-Q-heads/plain/{UNGROUPED}",
    ),
    _kind(
        "lengths that are no multiple of a tile",
        "thu-ml/SageAttention#377 woct0rdho/SageAttention#98 pytorch/pytorch#176091",
        f"tail-keys-dropped {SDPA}/normal/plain/{TILES}",
        f"last-rows-dropped {SDPA}/normal/plain/{TILES}",
        f"padding-counted {SDPA}/normal/plain/{MAIN}",
    ),
    _kind(
        "values of another width than the keys",
        "pytorch/pytorch#110832",
        f"values-cut {SDPA}/penalty-row/additive/2x3x3x5x9x4x6",
        f"scale-of-values {SDPA}/normal/plain/{UNGROUPED}",
        f"value-gradient-cut {SDPA}_gradients/penalty-row/additive/2x3x3x5x9x4x6",
    ),
    _kind(
        "float64 with a softmax in float32",
        "jax-ml/jax#34114",
        f"float32-softmax {SDPA}/normal/boolean/{MAIN}",
    ),
    _kind(
        "products in a coarser format than the tensors'",
        "jax-ml/jax#16349 jax-ml/jax#9973 ml-explore/mlx#3897 pytorch/pytorch#151098",
        f"tf32-products {SDPA}/padding/boolean/2x2x2x9x12x96x40",
        f"tf32-products {SDPA}/normal/plain/{TILES}",
        "tf32-products causal_attention/key-cliff/33x20x7",
        f"tf32-scores {SDPA}/scale-large/scale/{MAIN}",
    ),
    _kind(
        "axes of size 0",
        "pytorch/pytorch#141218",
        f"no-keys-refused {SDPA}/empty/plain/2x6x3x5x0x7x4",
        "no-tokens-refused causal_attention/empty/0x20x7",
    ),
    _kind(
        "dropout outside training",
        "pytorch/pytorch#27968",
        f"dropout-left-on multi_head_attention/normal/plain/{LAYER}",
    ),
    _kind(
        "results that do not depend on an input",
        "chrishayuk/larql#227",
        "zeros attention/normal/33x20x7",
        f"zeros multi_head_attention/lookups/plain/{LAYER}",
    ),
)

GRADIENTS: Final = (
    _kind(
        "a backward pass that takes its cotangent for contiguous",
        "Dao-AILab/flash-attention#355",
        f"cotangent-strides-ignored {SDPA}_gradients/layout-F/plain/{MAIN}",
        f"cotangent-expansion-ignored {SDPA}_gradients/layout-stride0-rows/plain/{MAIN}",
        "cotangent-strides-ignored attention_gradients/layout-F/5x6x3",
    ),
    _kind(
        "zeros for the gradient of a mask",
        "ml-explore/mlx#2909",
        f"mask-gradient-zero {SDPA}_gradients/mask-LxS/additive/{UNGROUPED}",
        f"mask-gradient-zero {SDPA}_gradients/normal/additive-scale/{MAIN}",
    ),
    _kind(
        "weights that no gradient reaches",
        "paiml/aprender#2203",
        "query-weights-gradient-zero attention_gradients/normal/33x20x7",
        "key-weights-gradient-zero attention_gradients/fresh/33x20x7",
        "value-weights-gradient-zero attention_linear_layers_gradients/normal/bias/33x20x7",
        "gradient-missing attention_gradients/normal/6x3x2",
        f"output-weights-gradient-zero multi_head_attention_gradients/normal/plain/{LAYER}",
    ),
)

OTHER: Final = (
    _place(
        "second derivatives, refused by fused kernels",
        "pytorch/pytorch#116350",
        "not covered: gradients are declared once, in `tests/suite/test_adjoint.py`",
    ),
    _place(
        "a batch and its samples differ in the last bits",
        "pytorch/pytorch#88718",
        "the check `samples`: judged by bounds, equality of bits is reported",
    ),
    _place(
        "offsets beyond 32 bits",
        "pytorch/pytorch#187227 pytorch/pytorch#162588",
        "not covered: more than 65 536 keys are beyond both tiers",
    ),
    _place(
        "comparisons that skip NaN",
        "tracel-ai/cubecl#1070 numpy/numpy#8145 numpy/numpy#8165",
        "`tests/suite/test_verdict.py`: finiteness is part of the contract, and comes first",
    ),
    _place(
        "tolerances that were tuned until tests passed",
        "huggingface/transformers#34512 huggingface/transformers#40702",
        "`tests/suite/test_rounding.py`: every bound is derived, and every entry is judged",
    ),
    _place(
        "deadlines that measure the machine",
        "GalacticDynamics/coordinax#711",
        "`tests/suite/test_engine.py`: one generous limit for a case, which a run may set",
    ),
    _place(
        "workers that take all threads and all memory",
        "isayevlab/aimnetcentral#103 scipy/scipy#25002 jax-ml/jax#7323",
        "`tests/suite/test_backend_traps.py`: one thread, and GPU memory only as needed",
    ),
    _place(
        "workers that collect different tests",
        "pytest-dev/pytest-xdist#598 pytest-dev/pytest-xdist#432 pytest-dev/pytest-xdist#63",
        "`tests/suite/test_cases.py`: two processes collect the same list",
    ),
    _place(
        "results that depend on the order of tests",
        "pytorch/pytorch#196605",
        "`tests/suite/test_cases.py`: a case does not depend on those before it",
    ),
    _place(
        "failures that cannot be reproduced, and skips that nobody counts",
        "data-apis/array-api-tests#379 data-apis/array-api-tests#300 data-apis/array-api-tests#368",
        "`tests/suite/test_reproduction.py` and `tests/suite/test_summary.py`",
    ),
    _place(
        "expected values that went stale, and frameworks that cannot share a process",
        "tensorflow/tensorflow#42350 microsoft/onnxruntime#26813 tensorflow/tensorflow#13615 "
        "pytorch/pytorch#155201",
        "`tests/suite/test_enclosure.py`: certified anew; `tests/suite/test_engine.py`: a process "
        "for each",
    ),
)
