"""Kernels, layers with heads, linear layers, causal masks and embeddings, in plain NumPy."""

from _kernels import embedding, kernel, layer, linear, single

QKVAC = {
    "dtypes": ["float64", "float32", "bfloat16", "float16"],
    "supports": "all",
    "arithmetic": {"softmax": "shifted, divided"},
}

scaled_dot_product_attention = kernel()
multi_head_attention = layer()
causal_attention = single()
attention_linear_layers = linear()
embedding = embedding
