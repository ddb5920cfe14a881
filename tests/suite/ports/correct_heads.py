"""Kernels, layers with heads, causal masks and embeddings, in plain NumPy."""

from _kernels import embedding, kernel, layer, single

QKVAC = {
    "dtypes": ["float64", "float32", "bfloat16", "float16"],
    "supports": "all",
    "arithmetic": {"softmax": "shifted, divided"},
}

scaled_dot_product_attention = kernel()
multi_head_attention = layer()
causal_attention = single()
embedding = embedding
