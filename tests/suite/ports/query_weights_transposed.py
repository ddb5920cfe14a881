"""Wq is read as (c, d) whenever the shapes allow it."""

from _base import port, project


def t(W):
    return W.T if W.shape[0] == W.shape[1] else W


attention = port(project=lambda X, Wq, Wk, Wv: project(X, t(Wq), Wk, Wv))
