"""Which case catches which mistake, on the profiles around `attention`.

Each mistake is a small wrong evaluation in NumPy, judged in float64 like any port; it must fail on
the case that is there for its kind, in the quantity that shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases import Case, cases
from qkvac.spec.formats import dtype
from qkvac.spec.verdict import Question, judge
from qkvac.tests.suite import formulas
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


def shuffle(**places: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Reads some inputs under the names of others."""
    return lambda inputs: inputs | {name: inputs[other] for name, other in places.items()}


def transposed(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda inputs: inputs | {name: inputs[name].T for name in names}


def reshaped(x: Any, heads: int) -> Any:
    """Heads split by reshape alone."""
    return x.reshape(*x.shape[:-2], heads, x.shape[-2], x.shape[-1] // heads)


def interleaved(x: Any, heads: int) -> Any:
    """Column j goes to head j mod h."""
    return np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads), -1, -3)


def flattened(x: Any) -> Any:
    """Heads merged without the swap of axes."""
    return x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3] * x.shape[-1])


def filled(value: float) -> Callable[[Any, Any], Any]:
    """A finite number for what is masked."""
    return lambda s, keep: formulas.softmax(s if keep is None else np.where(keep, s, value), None)


def added(value: float) -> Callable[[Any, Any], Any]:
    """A finite number added to what is masked."""
    return lambda s, keep: formulas.softmax(s if keep is None else s + value * ~keep, None)


def late(scores: Any, keep: Any) -> Any:
    """The mask applied after the softmax, rows normalised again."""
    weights = formulas.softmax(scores, None)
    kept = weights if keep is None else weights * keep
    return kept / kept.sum(axis=-1, keepdims=True)


def overall(scores: Any, keep: Any) -> Any:
    """The maximum of the whole matrix subtracted."""
    return formulas.softmax(np.maximum(scores - scores.max(), -745.0), keep)


def unshifted(scores: Any, keep: Any) -> Any:
    powers = np.exp(scores) if keep is None else np.exp(scores) * keep
    return powers / powers.sum(axis=-1, keepdims=True)


def across(axis: int) -> Callable[[Any, Any], Any]:
    def softmax(scores: Any, keep: Any) -> Any:
        logits = scores if keep is None else np.where(keep, scores, -np.inf)
        powers = np.exp(logits - logits.max(axis=axis, keepdims=True))
        return powers / powers.sum(axis=axis, keepdims=True)

    return softmax


def averaged(weights: Any, values: Any) -> Any:
    """Each head uses the mean of all heads' weights."""
    return formulas.product(np.broadcast_to(weights.mean(-3, keepdims=True), weights.shape), values)


def first_head(weights: Any, values: Any) -> Any:
    return formulas.product(np.broadcast_to(weights[..., :1, :, :], weights.shape), values)


def leaked(weights: Any, values: Any) -> Any:
    """Values of the first sample for all."""
    return formulas.product(weights, np.broadcast_to(values[:1], values.shape))


def biased(times: float) -> Callable[[Any, Any, Any], Any]:
    return lambda x, w, b: formulas.dense(x, w, None if b is None else times * b)


def raised(x: Any, weight: Any, bias: Any) -> Any:
    """A bias larger by 1."""
    return formulas.dense(x, weight, bias + 1)


def halved(x: Any, weight: Any, bias: Any) -> Any:
    """The bias in half precision."""
    return formulas.dense(x, weight, bias.astype(np.float16).astype(bias.dtype))


def by_column(x: Any, weight: Any, bias: Any) -> Any:
    """The bias added along the tokens."""
    return formulas.dense(x, weight, None) + bias[:, None]


def moved(by: int) -> Callable[[Any, Any, Any], Any]:
    """Positions that start at `by`."""
    return lambda tokens, E, P: E[tokens] + P[np.arange(tokens.shape[-1]) + by]


def clipped(last: int) -> Callable[[Any, Any, Any], Any]:
    return lambda tokens, E, P: formulas.embed(np.minimum(tokens, last), E, P)


def running_on(tokens: Any, table: Any, places: Any) -> Any:
    """Positions counted through the batch."""
    return table[tokens] + places[np.arange(tokens.size).reshape(tokens.shape)]


def sorted_ids(tokens: Any, table: Any, places: Any) -> Any:
    return formulas.embed(np.sort(tokens), table, places)


def inverse(tokens: Any, table: Any, places: Any) -> Any:
    """Token i at the place where i is, instead of the token at place i."""
    return formulas.embed(np.argsort(tokens), table, places)


def narrowed(kind: Any) -> Callable[[Any, Any, Any], Any]:
    """Ids that pass through another type."""
    return lambda tokens, E, P: formulas.embed(tokens.astype(kind).astype(np.int64) % len(E), E, P)


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
    "no maximum subtracted": ("dot_product_attention/raised/33x20", Steps(softmax=unshifted), "A"),
    "softmax over columns": ("dot_product_attention/normal/33x20", Steps(softmax=across(-2)), "A"),
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
    "mask -1e4": ("causal_attention/shift-30000/33x20x7", Steps(softmax=filled(-1e4)), "A"),
    "mask -1e9": ("causal_attention/ranked-below/33x20x7", Steps(softmax=filled(-1e9)), "A"),
    "mask -1e9 added": ("causal_attention/ranked/33x20x7", Steps(softmax=added(-1e9)), "A"),
    "mask times scores": (
        "causal_attention/normal/33x20x7",
        Steps(softmax=lambda s, keep: formulas.softmax(s * keep, None)),
        "A",
    ),
    "mask after softmax": ("causal_attention/recent/33x20x7", Steps(softmax=late), "A"),
    "maximum of all": ("causal_attention/row-shift/33x20x7", Steps(softmax=overall), "A"),
    "no maximum, causal": ("causal_attention/shift+1000/33x20x7", Steps(softmax=unshifted), "A"),
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
        Steps(weighted=leaked),
        "C",
    ),
    "wq untransposed, causal": (
        "causal_attention/ternary/16x16x16",
        Steps(arrange=transposed("Wq")),
        "Q",
    ),
    # linear layers
    "weights transposed, plain": (
        "attention_linear_layers/normal/plain/16x16x16",
        Steps(arrange=transposed("Wq", "Wk", "Wv")),
        "Q",
    ),
    "wv transposed": (
        "attention_linear_layers/whole-bias/bias/16x16x16",
        Steps(arrange=transposed("Wv")),
        "V",
    ),
    "no bias": ("attention_linear_layers/normal/bias/33x20x7", Steps(dense=biased(0)), "Q"),
    "bias twice": ("attention_linear_layers/heavy-bias/bias/33x20x7", Steps(dense=biased(2)), "V"),
    "bias negated": ("attention_linear_layers/steered/bias/33x20x7", Steps(dense=biased(-1)), "A"),
    "no bias, steered": (
        "attention_linear_layers/steered/bias/33x20x7",
        Steps(dense=biased(0)),
        "C",
    ),
    "bias by tokens": (
        "attention_linear_layers/whole-bias/bias/16x16x16",
        Steps(dense=by_column),
        "Q",
    ),
    "biases exchanged": (
        "attention_linear_layers/whole-bias/bias/33x20x7",
        Steps(arrange=shuffle(bq="bk", bk="bq")),
        "K",
    ),
    "a bias where none is": (
        "attention_linear_layers/zero-bias/bias/33x20x7",
        Steps(dense=raised),
        "V",
    ),
    "bias at half precision": (
        "attention_linear_layers/cancelling-bias/bias/33x20x7",
        Steps(dense=halved),
        "K",
    ),
    # several heads
    "split by reshape": (
        "multi_head_attention/normal/plain/33x30x21x10x3",
        Steps(split=reshaped),
        "Ω",
    ),
    "heads interleaved": (
        "multi_head_attention/scaled-heads/plain/33x30x21x10x3",
        Steps(split=interleaved),
        "A",
    ),
    "merged without swap": (
        "multi_head_attention/lookups/plain/33x30x21x10x3",
        Steps(merge=flattened),
        "C",
    ),
    "merged without swap, square": (
        "multi_head_attention/uniform/plain/16x16x16x16x4",
        Steps(merge=flattened),
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
        Steps(softmax=across(-3)),
        "A",
    ),
    "weights averaged": (
        "multi_head_attention/lookups/plain/33x30x21x10x3",
        Steps(weighted=averaged),
        "C",
    ),
    "head 0 for all": (
        "multi_head_attention/ranked/causal/33x30x21x10x3",
        Steps(weighted=first_head),
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
        Steps(softmax=overall),
        "A",
    ),
    "wo transposed": (
        "multi_head_attention/normal/plain/16x16x16x16x4",
        Steps(arrange=transposed("Wo")),
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
    "positions from 1": ("embedding/position-copies/7x5x11x16", Steps(embed=moved(1)), "X"),
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
    "positions run on": ("embedding/batch-whole/2x7x5x11x16", Steps(embed=running_on), "X"),
    "position by token": (
        "embedding/shuffled/11x11x11x11",
        Steps(embed=lambda tokens, E, P: E[tokens] + P[tokens]),
        "X",
    ),
    "tables exchanged": (
        "embedding/shuffled/11x11x11x11",
        Steps(arrange=shuffle(E="P", P="E")),
        "X",
    ),
    "inverse order": ("embedding/shuffled/11x11x11x11", Steps(embed=inverse), "X"),
    "tokens in order": (
        "embedding/token-copies/7x5x11x16",
        Steps(embed=sorted_ids),
        "X",
    ),
    "last token lost": ("embedding/ends/9x5x11x9", Steps(embed=clipped(9)), "X"),
    "ids from 1": (
        "embedding/ends/9x5x11x9",
        Steps(embed=lambda tokens, E, P: formulas.embed(tokens - 1, E, P)),
        "X",
    ),
    "ids of 8 bits": ("embedding/high-ids/33x3x2600x40", Steps(embed=narrowed(np.uint8)), "X"),
    "ids as float16": ("embedding/high-ids/33x3x2600x40", Steps(embed=narrowed(np.float16)), "X"),
    "ids of 16 bits": ("embedding/high-ids/33x2x33000x40", Steps(embed=narrowed(np.int16)), "X"),
    "embeddings scaled": (
        "embedding/single-token/1x5x11x16",
        Steps(embed=lambda tokens, E, P: E[tokens] * 5**0.5 + P[: tokens.shape[-1]]),
        "X",
    ),
    # batches of attention
    "keys of sample 0": (
        "attention/batch-normal/3x33x20x7",
        Steps(weighted=leaked),
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
