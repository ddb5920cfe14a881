"""The cotangent is read as it lies in memory, row by row."""

from _gradients import gradients

QKVAC = {"supports": ["layouts"]}
attention_gradients = gradients(cotangent=lambda dC: dC.ravel(order="K").reshape(dC.shape))
