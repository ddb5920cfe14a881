"""What `qkvac new` writes: a port, or a declaration, to be filled in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from qkvac.declaration import FILE
from qkvac.usage import UsageError

PORT: Final = '''\
"""A port of attention, to be filled in and then checked by qkvac."""

import numpy as np

# What the implementation is, so that it is judged by what it claims. Every key may be left out.
QKVAC = {{
    "name": {name},
    # Without dtypes: float32, and float64 if that is what comes back for it.
    # "dtypes": ["float64", "float32", "bfloat16", "float16"],
    # Inputs beyond plain ones: "empty" has no tokens, "layouts" are strided or read-only arrays.
    # "supports": ["empty", "layouts"],
    # Whether the same call gives the same bits again.
    # "deterministic": True,
    # The precision of each step, from which the bounds are made: the formats that factors are
    # rounded to, that sums run in, and the form of the softmax ("shifted, divided", "fused",
    # "reciprocal" or "logsumexp"). A table under a dtype holds for that dtype alone.
    # "arithmetic": {{
    #     "softmax": "shifted, divided",
    #     "float16": {{"accumulation": "float32"}},
    # }},
}}


def attention(X, Wq, Wk, Wv):
    """Self-attention of the tokens X[n, d], with the weights Wq, Wk and Wv, each [d, c].

    All are NumPy arrays of one dtype (bfloat16 is that of ml_dtypes), and so is what is returned:
    Q, K, V and C as [n, c], A as [n, n]. C alone will do, but the more there is, the sharper the
    test; {{"Q": Q, "K": K, "V": V, "scores": Ω, "A": A, "C": C}} says it all.
    """
    # Call your implementation here, and turn what it returns into arrays.
    #
    #     Q, K, V = X @ Wq, X @ Wk, X @ Wv
    #     S = Q @ K.T / np.sqrt(X.dtype.type(Wq.shape[1]))
    #     E = np.exp(S - S.max(axis=1, keepdims=True, initial=-np.inf))
    #     A = E / E.sum(axis=1, keepdims=True)
    #     return Q, K, V, A, A @ V
    raise RuntimeError("attention is still to be written")
'''

DECLARATION: Final = """\
# What a port is that is no Python module, so that it is judged by what it claims: a command
# (qkvac check -- ./my_port), a model (qkvac check my_model.onnx), or outputs (qkvac grade).
# It lies beside the port, or where qkvac is run. Every key may be left out.

name = "my port"
# version = "1.0"

# The functions that it computes.
# profiles = ["attention"]

# Without dtypes: float32, and float64 if that is what comes back for it. A model has the dtype of
# its inputs.
# dtypes = ["float64", "float32", "bfloat16", "float16"]

# Inputs beyond plain ones: "empty" has no tokens.
# supports = ["empty"]

# Whether the same call gives the same bits again.
# deterministic = true

# The precision of each step, from which the bounds are made: the formats that factors are rounded
# to, that sums run in, and the form of the softmax ("shifted, divided", "fused", "reciprocal" or
# "logsumexp"). A table under a dtype holds for that dtype alone.
# [arithmetic]
# softmax = "shifted, divided"
# flushes = false
# [arithmetic.float16]
# accumulation = "float32"
"""


def write(path: Path) -> str:
    """Writes the skeleton that goes by the file's name; returns what to do next.

    Raises UsageError where it cannot be written; what is there already stays as it is.
    """
    if path.name == FILE:
        text, advice = DECLARATION, f"{path} is written; say in it what your port is"
    elif path.suffix == ".py":
        text = PORT.format(name=json.dumps(path.stem, ensure_ascii=False))
        advice = f"{path} is written; fill in `attention`, then: qkvac check {path}"
    else:
        raise UsageError(
            f"{path}: a skeleton is a Python port, FILE.py, or the declaration {FILE}; "
            "a port in another language starts from `qkvac export`"
        )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists, and is left as it is") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return advice
