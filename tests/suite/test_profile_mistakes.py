"""Which case catches which mistake, on the profiles around `attention`.

Each mistake is a small wrong evaluation in NumPy, judged in float64 like any port; it must fail on
the case that is there for its kind, in the quantity that shows it.
"""

from __future__ import annotations

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases.catalogue import Case, cases
from qkvac.spec.formats import dtype
from qkvac.spec.verdicts.verdict import Question, judge
from qkvac.tests.suite import formulas
from qkvac.tests.suite import wrong_steps as wrong
from qkvac.tests.suite.formulas import Steps, evaluate

PROFILES = (
    "attention",
    "dot_product_attention",
    "causal_attention",
    "attention_linear_layers",
    "multi_head_attention",
    "embedding",
)


def named(name: str) -> Case:
    return next(case for profile in PROFILES for case in cases(profile) if case.id == name)


TRI = formulas.triangle
MISTAKES: dict[str, tuple[str, Steps, str]] = {
    # no weights
    "a scale": ("dot_product_attention/normal/33x20", Steps(raw=lambda x: x @ x.T / 20**0.5), "Ω"),
    "a hidden scale": (
        "dot_product_attention/leaders/33x20",
        Steps(softmax=lambda s, keep: formulas.softmax(s / 20**0.5, keep)),
        "A",
    ),
    "X X": ("dot_product_attention/ternary/16x16", Steps(raw=lambda x: x @ x), "Ω"),
    "weights transposed": (
        "dot_product_attention/leaders/33x20",
        Steps(weighted=lambda a, x: a.T @ x),
        "C",
    ),
    "no maximum subtracted": (
        "dot_product_attention/raised/33x20",
        Steps(softmax=wrong.unshifted),
        "A",
    ),
    "softmax over columns": (
        "dot_product_attention/normal/33x20",
        Steps(softmax=wrong.across(-2)),
        "A",
    ),
    "samples share scores": (
        "dot_product_attention/batch-normal/2x33x20",
        Steps(raw=lambda x: x @ np.broadcast_to(x[:1].swapaxes(1, 2), (2, 20, 33))),
        "Ω",
    ),
    # causal
    "no mask": ("causal_attention/normal/33x20x7", Steps(triangle=lambda n: None), "A"),
    "mask one too far": (
        "causal_attention/uniform/33x20x7",
        Steps(triangle=lambda n: np.tri(n, k=1, dtype=bool)),
        "A",
    ),
    "strict mask": (
        "causal_attention/pairs/16x16x16",
        Steps(triangle=lambda n: np.tri(n, k=-1, dtype=bool)),
        "A",
    ),
    "upper triangle": ("causal_attention/ranked/33x20x7", Steps(triangle=lambda n: TRI(n).T), "A"),
    "two tokens, upper": (
        "causal_attention/normal/2x3x5",
        Steps(triangle=lambda n: TRI(n).T),
        "C",
    ),
    "mask of tiles": (
        "causal_attention/normal/65x24x10",
        Steps(triangle=lambda n: TRI(n) | (np.arange(n) // 64 == np.arange(n)[:, None] // 64)),
        "A",
    ),
    "mask -1e4": ("causal_attention/shift-30000/33x20x7", Steps(softmax=wrong.filled(-1e4)), "A"),
    "mask -1e9": ("causal_attention/ranked-below/33x20x7", Steps(softmax=wrong.filled(-1e9)), "A"),
    "mask -1e9 added": ("causal_attention/ranked/33x20x7", Steps(softmax=wrong.added(-1e9)), "A"),
    "scores in float32": (
        "causal_attention/whole-scores/33x20x7",
        Steps(product=wrong.single),
        "Ω",
    ),
    "heads in float32": (
        "multi_head_attention/whole-scores/plain/33x30x21x10x3",
        Steps(product=wrong.single),
        "Ω",
    ),
    "mask times scores": (
        "causal_attention/normal/33x20x7",
        Steps(softmax=lambda s, keep: formulas.softmax(s * keep, None)),
        "A",
    ),
    "mask after softmax": ("causal_attention/recent/33x20x7", Steps(softmax=wrong.late), "A"),
    "maximum of all": ("causal_attention/row-shift/33x20x7", Steps(softmax=wrong.overall), "A"),
    "no maximum, causal": (
        "causal_attention/shift+1000/33x20x7",
        Steps(softmax=wrong.unshifted),
        "A",
    ),
    "epsilon": (
        "causal_attention/single-token/1x20x7",
        Steps(softmax=lambda s, keep: formulas.softmax(s, keep) / (1 + 1e-9)),
        "A",
    ),
    "keys by bfloat16": (
        "causal_attention/key-cliff/33x20x7",
        Steps(
            arrange=lambda x: {k: v.astype(dtype("bfloat16")).astype(v.dtype) for k, v in x.items()}
        ),
        "A",
    ),
    "values of sample 0": (
        "causal_attention/batch-normal/2x33x20x7",
        Steps(weighted=wrong.leaked),
        "C",
    ),
    "wq untransposed, causal": (
        "causal_attention/ternary/16x16x16",
        Steps(arrange=wrong.transposed("Wq")),
        "Q",
    ),
    # linear layers
    "weights transposed, plain": (
        "attention_linear_layers/normal/plain/16x16x16",
        Steps(arrange=wrong.transposed("Wq", "Wk", "Wv")),
        "Q",
    ),
    "wv transposed": (
        "attention_linear_layers/whole-bias/bias/16x16x16",
        Steps(arrange=wrong.transposed("Wv")),
        "V",
    ),
    "no bias": ("attention_linear_layers/normal/bias/33x20x7", Steps(dense=wrong.biased(0)), "Q"),
    "bias twice": (
        "attention_linear_layers/heavy-bias/bias/33x20x7",
        Steps(dense=wrong.biased(2)),
        "V",
    ),
    "bias negated": (
        "attention_linear_layers/steered/bias/33x20x7",
        Steps(dense=wrong.biased(-1)),
        "A",
    ),
    "no bias, steered": (
        "attention_linear_layers/steered/bias/33x20x7",
        Steps(dense=wrong.biased(0)),
        "C",
    ),
    "bias by tokens": (
        "attention_linear_layers/whole-bias/bias/16x16x16",
        Steps(dense=wrong.by_column),
        "Q",
    ),
    "biases exchanged": (
        "attention_linear_layers/whole-bias/bias/33x20x7",
        Steps(arrange=wrong.shuffle(bq="bk", bk="bq")),
        "K",
    ),
    "a bias where none is": (
        "attention_linear_layers/zero-bias/bias/33x20x7",
        Steps(dense=wrong.raised),
        "V",
    ),
    "sums in float32": (
        "attention_linear_layers/whole-projections/plain/33x20x7",
        Steps(dense=lambda x, w, b: wrong.single(x, w.T)),
        "K",
    ),
    "bias at half precision": (
        "attention_linear_layers/cancelling-bias/bias/33x20x7",
        Steps(dense=wrong.halved),
        "K",
    ),
    # several heads
    "split by reshape": (
        "multi_head_attention/normal/plain/33x30x21x10x3",
        Steps(split=wrong.reshaped),
        "Ω",
    ),
    "heads interleaved": (
        "multi_head_attention/scaled-heads/plain/33x30x21x10x3",
        Steps(split=wrong.interleaved),
        "A",
    ),
    "merged without swap": (
        "multi_head_attention/lookups/plain/33x30x21x10x3",
        Steps(merge=wrong.flattened),
        "C",
    ),
    "merged without swap, square": (
        "multi_head_attention/uniform/plain/16x16x16x16x4",
        Steps(merge=wrong.flattened),
        "Y",
    ),
    "heads reversed": (
        "multi_head_attention/scaled-heads/causal/33x30x21x10x3",
        Steps(merge=lambda x: formulas.merge(x[..., ::-1, :, :])),
        "C",
    ),
    "scale of the model": (
        "multi_head_attention/hot/plain/33x30x21x10x3",
        Steps(root=lambda d, c, h: c**0.5),
        "A",
    ),
    "scale by heads": (
        "multi_head_attention/normal/causal/33x30x21x10x3",
        Steps(root=lambda d, c, h: h**0.5),
        "A",
    ),
    "scale of the input": (
        "multi_head_attention/normal/plain/9x5x6x4x6",
        Steps(root=lambda d, c, h: (d / h) ** 0.5),
        "A",
    ),
    "softmax over heads": (
        "multi_head_attention/normal/plain/33x30x21x10x3",
        Steps(softmax=wrong.across(-3)),
        "A",
    ),
    "weights averaged": (
        "multi_head_attention/lookups/plain/33x30x21x10x3",
        Steps(weighted=wrong.averaged),
        "C",
    ),
    "head 0 for all": (
        "multi_head_attention/ranked/causal/33x30x21x10x3",
        Steps(weighted=wrong.first_head),
        "C",
    ),
    "causal ignored": (
        "multi_head_attention/uniform/causal/33x30x21x10x3",
        Steps(triangle=lambda n: None),
        "A",
    ),
    "causal one too far": (
        "multi_head_attention/normal/causal/65x24x20x14x2",
        Steps(triangle=lambda n: np.tri(n, k=1, dtype=bool)),
        "A",
    ),
    "maximum over heads": (
        "multi_head_attention/shifted-heads/plain/33x30x21x10x3",
        Steps(softmax=wrong.overall),
        "A",
    ),
    "wo transposed": (
        "multi_head_attention/normal/plain/16x16x16x16x4",
        Steps(arrange=wrong.transposed("Wo")),
        "Y",
    ),
    "wo for bfloat16": (
        "multi_head_attention/cancelling-heads/plain/33x30x21x10x3",
        Steps(arrange=lambda x: x | {"Wo": x["Wo"].astype(dtype("bfloat16")).astype(np.float64)}),
        "Y",
    ),
    "samples as heads": (
        "multi_head_attention/batch-lookups/plain/3x33x30x21x10x3",
        Steps(weighted=lambda a, v: formulas.product(a, np.swapaxes(v, 0, 1))),
        "C",
    ),
    "fused by head": (
        "multi_head_attention/normal/plain/5x8x6x4x2",
        Steps(
            arrange=lambda x: (
                x
                | dict(
                    zip(
                        ("Wq", "Wk", "Wv"),
                        np.concatenate([x[k] for k in ("Wq", "Wk", "Wv")], axis=1)
                        .reshape(8, 2, 3, 3)
                        .transpose(2, 0, 1, 3)
                        .reshape(3, 8, 6),
                        strict=True,
                    )
                )
            )
        ),
        "Q",
    ),
    # embeddings
    "positions from 1": ("embedding/position-copies/7x5x11x16", Steps(embed=wrong.moved(1)), "X"),
    "no positions": (
        "embedding/normal/7x5x11x16",
        Steps(embed=lambda tokens, E, P: E[tokens]),
        "X",
    ),
    "the last positions": (
        "embedding/whole/7x5x11x16",
        Steps(embed=lambda tokens, E, P: E[tokens] + P[-tokens.shape[-1] :]),
        "X",
    ),
    "positions run on": ("embedding/batch-whole/2x7x5x11x16", Steps(embed=wrong.running_on), "X"),
    "position by token": (
        "embedding/shuffled/11x11x11x11",
        Steps(embed=lambda tokens, E, P: E[tokens] + P[tokens]),
        "X",
    ),
    "tables exchanged": (
        "embedding/shuffled/11x11x11x11",
        Steps(arrange=wrong.shuffle(E="P", P="E")),
        "X",
    ),
    "inverse order": ("embedding/shuffled/11x11x11x11", Steps(embed=wrong.inverse), "X"),
    "tokens in order": (
        "embedding/token-copies/7x5x11x16",
        Steps(embed=wrong.sorted_ids),
        "X",
    ),
    "last token lost": ("embedding/ends/9x5x11x9", Steps(embed=wrong.clipped(9)), "X"),
    "ids from 1": (
        "embedding/ends/9x5x11x9",
        Steps(embed=lambda tokens, E, P: formulas.embed(tokens - 1, E, P)),
        "X",
    ),
    "ids of 8 bits": (
        "embedding/high-ids/33x3x2600x40",
        Steps(embed=wrong.narrowed(np.uint8)),
        "X",
    ),
    "ids as float16": (
        "embedding/high-ids/33x3x2600x40",
        Steps(embed=wrong.narrowed(np.float16)),
        "X",
    ),
    "ids of 16 bits": (
        "embedding/high-ids/33x2x33000x40",
        Steps(embed=wrong.narrowed(np.int16)),
        "X",
    ),
    "embeddings scaled": (
        "embedding/single-token/1x5x11x16",
        Steps(embed=lambda tokens, E, P: E[tokens] * 5**0.5 + P[: tokens.shape[-1]]),
        "X",
    ),
    # batches of attention
    "keys of sample 0": (
        "attention/batch-normal/3x33x20x7",
        Steps(weighted=wrong.leaked),
        "C",
    ),
    "samples as tokens": (
        "attention/batch-lookup/5x5x12x7",
        Steps(weighted=lambda a, v: formulas.product(a, np.swapaxes(v, 0, 1))),
        "C",
    ),
    "two axes exchanged": (
        "attention/batch-ternary/2x3x9x20x7",
        Steps(arrange=lambda x: x | {"X": np.swapaxes(x["X"], 0, 1).reshape(2, 3, 9, 20)}),
        "Q",
    ),
}
"""By what is wrong: a case that is to catch it, the wrong steps, and a quantity that shows it."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_where_it_should(mistake: str) -> None:
    case_id, steps, quantity = MISTAKES[mistake]
    case = named(case_id)
    model = Arithmetic.for_dtype("float64", {"softmax": "shifted, divided"})
    outputs = evaluate(case, case.inputs("float64"), steps)
    verdicts = judge(Question(case, "float64", model), outputs)
    assert verdicts[quantity].status == "failed"
    assert case.tier == "default" or mistake == "ids of 16 bits"


def test_the_mistakes_concern_every_profile() -> None:
    met = {named(case_id).profile for case_id, _, _ in MISTAKES.values()}
    assert met == set(PROFILES)
