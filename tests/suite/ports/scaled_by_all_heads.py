"""The scale is that of the model's width instead of a head's."""

from _base import product
from _kernels import kernel, merge, split

QKVAC = {"supports": "all"}


def multi_head_attention(X, Wq, Wk, Wv, Wo, *, heads, causal=False):
    Q, K, V = product(X, Wq), product(X, Wk), product(X, Wv)
    attend = kernel(scale=lambda given, d: (heads * d) ** -0.5)
    found = attend(*(split(x, heads) for x in (Q, K, V)), causal=causal)
    C = merge(found["C"])
    return {"Q": Q, "K": K, "V": V, **found, "C": C, "Y": product(C, Wo)}
