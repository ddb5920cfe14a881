"""The values of a frozen layer get no gradient at all."""

from _gradients import gradients

computed = gradients()


def attention_gradients(X, Wq, Wk, Wv, dC):
    return {**computed(X, Wq, Wk, Wv, dC), "dWv": None}
