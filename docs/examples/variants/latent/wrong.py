"""Five mistakes in latent attention: qkvac check wrong.py:NAME --spec equations.py."""

import numpy as np
from port import QKVAC, causal_softmax, merge, split, turned

__all__ = ["QKVAC"]


def attention(X, Wq, Wd, Uk, Uv, Wo, heads, width, softmax=causal_softmax):
    L, Q = X @ Wd, X @ Wq
    k, v = split(L @ Uk, heads), split(L @ Uv, heads)
    A = softmax(split(Q, heads) @ turned(k) / X.dtype.type(np.sqrt(width)))
    return merge(A @ v) @ Wo


class latent_width:
    """Scores are divided by the root of the latent width, as the absorbed product suggests."""

    @staticmethod
    def latent_attention(X, Wq, Wd, Uk, Uv, Wo, *, heads):
        return attention(X, Wq, Wd, Uk, Uv, Wo, heads, Wd.shape[-1])


class whole_width:
    """Scores are divided by the root of the width of all heads."""

    @staticmethod
    def latent_attention(X, Wq, Wd, Uk, Uv, Wo, *, heads):
        return attention(X, Wq, Wd, Uk, Uv, Wo, heads, Wq.shape[-1])


class keys_for_values:
    """Values are expanded as keys are."""

    @staticmethod
    def latent_attention(X, Wq, Wd, Uk, Uv, Wo, *, heads):
        return attention(X, Wq, Wd, Uk, Uk, Wo, heads, Wq.shape[-1] // heads)


class sees_the_future:
    """There is no mask."""

    @staticmethod
    def latent_attention(X, Wq, Wd, Uk, Uv, Wo, *, heads):
        def softmax(S):
            E = np.exp(S - S.max(axis=-1, keepdims=True, initial=-np.inf))
            return E / E.sum(axis=-1, keepdims=True)

        return attention(X, Wq, Wd, Uk, Uv, Wo, heads, Wq.shape[-1] // heads, softmax)


class heads_not_split:
    """Heads take columns h, h + heads, … instead of consecutive ones."""

    @staticmethod
    def latent_attention(X, Wq, Wd, Uk, Uv, Wo, *, heads):
        order = np.arange(Wq.shape[-1]).reshape(-1, heads).T.ravel()
        turned_back = np.argsort(order)
        C = attention(
            *(X, Wq[:, order], Wd, Uk[:, order], Uv[:, order]),
            *(np.eye(Wq.shape[-1], dtype=X.dtype), heads, Wq.shape[-1] // heads),
        )
        return C[..., turned_back] @ Wo
