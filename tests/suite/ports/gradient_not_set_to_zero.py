"""Gradients are added to what earlier calls have left, and nobody sets them to 0."""

from _gradients import gradients

computed = gradients()
kept = {}


def attention_gradients(X, Wq, Wk, Wv, dC):
    result = {}
    for name, value in computed(X, Wq, Wk, Wv, dC).items():
        kept[name, value.shape, value.dtype] = kept.get((name, value.shape, value.dtype), 0) + value
        result[name] = kept[name, value.shape, value.dtype].copy()
    return result
