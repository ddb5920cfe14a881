"""Gradients by the chain rule, written out, in every dtype that NumPy multiplies."""

from _gradients import gradients

QKVAC = {"supports": "all", "arithmetic": {"softmax": "shifted, divided"}}
attention_gradients = gradients()
