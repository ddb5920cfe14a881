"""NumPy functions that printed equations call, as source text; they take leading batch axes."""

from __future__ import annotations

from typing import Final

SOFTMAX: Final = '''\
def softmax(x, axis, where=True):
    """Weights along an axis; dropped keys get none, a row without keys is all 0."""
    kept = np.broadcast_to(where, x.shape)
    top = x.max(axis=axis, keepdims=True, initial=-np.inf, where=kept)
    powers = np.exp(np.where(kept, x - np.where(np.isfinite(top), top, 0), -np.inf))
    total = powers.sum(axis=axis, keepdims=True)
    return powers / np.where(total > 0, total, 1)
'''

SIGMOID: Final = '''\
def sigmoid(x):
    """1/(1 + e^-x), entry by entry; no exponential overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, np.ones_like(e), e) / (1 + e)
'''

SPLIT: Final = '''\
def split(x, h):
    """Columns to heads: [..., n, c] to [..., h, n, c/h]."""
    *lead, rows, width = x.shape
    return x.reshape(*lead, rows, h, width // h).swapaxes(-2, -3)
'''

MERGE: Final = '''\
def merge(x):
    """Heads to columns: [..., h, n, e] to [..., n, h·e]."""
    *lead, heads, rows, width = x.shape
    return x.swapaxes(-2, -3).reshape(*lead, rows, heads * width)
'''

REPEAT: Final = '''\
def repeat(x, h):
    """Key/value heads, each for the consecutive query heads that share it."""
    return np.repeat(x, h // max(x.shape[-3], 1), axis=-3)
'''

SUM_TO: Final = '''\
def sum_to(x, like):
    """The sum over the axes along which `like` was broadcast or repeated."""
    x = x.sum(axis=tuple(range(x.ndim - like.ndim)))
    for axis, (have, want) in enumerate(zip(x.shape, like.shape)):
        if have != want:
            shape = (*x.shape[:axis], want, have // want, *x.shape[axis + 1 :])
            x = x.reshape(shape).sum(axis=axis + 1)
    return x
'''

SCATTER_ADD: Final = '''\
def scatter_add(x, index, like):
    """A table like `like`, each row the sum of the rows of x with its index."""
    table = np.zeros_like(like)
    np.add.at(table, index, x)
    return table
'''

PAD: Final = '''\
def pad(x, like):
    """x with rows of zeros up to the length of `like`, summed over leading axes."""
    table = np.zeros_like(like)
    table[: x.shape[-like.ndim]] = x.sum(axis=tuple(range(x.ndim - like.ndim)))
    return table
'''
