"""The forward pass has kept its weights in bfloat16 for the backward pass."""

import ml_dtypes
from _gradients import gradients, of_values, through_softmax


def kept(A):
    return A.astype(ml_dtypes.bfloat16).astype(A.dtype)


attention_gradients = gradients(
    through_softmax=lambda A, dA: through_softmax(kept(A), dA),
    of_values=lambda A, dC: of_values(kept(A), dC),
)
