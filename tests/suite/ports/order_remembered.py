"""Keys are summed in the order of importance that the last call of that length found."""

import numpy as np
from _base import port

order = {}


def by_importance(A, V):
    n = len(A)
    last = order.get(n, np.arange(n))
    order[n] = A.sum(axis=0).argsort()
    return sum((A[:, [k]] * V[k] for k in last[1:]), A[:, last[:1]] * V[last[:1]])


attention = port(context=by_importance)
