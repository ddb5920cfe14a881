"""The gradient of the tokens has the path through the values alone."""

from _gradients import gradients

attention_gradients = gradients(of_tokens=lambda dQ, dK, dV, Wq, Wk, Wv: dV @ Wv.T)
