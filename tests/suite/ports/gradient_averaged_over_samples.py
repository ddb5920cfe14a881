"""Gradients of weights are the mean over the samples of a batch, not their sum."""

from _gradients import gradients, of_weights

QKVAC = {"supports": ["batches"]}


def averaged(X, dY):
    return of_weights(X, dY) / X.dtype.type(len(X) if X.ndim > 2 else 1)


attention_gradients = gradients(of_weights=averaged)
