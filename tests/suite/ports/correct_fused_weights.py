"""One product with [Wq | Wk | Wv] makes Q, K and V, which are returned as views."""

import numpy as np
from _base import port, product

QKVAC = {"supports": ["layouts", "empty"], "arithmetic": {"softmax": "shifted, divided"}}

attention = port(project=lambda X, *weights: np.split(product(X, np.hstack(weights)), 3, axis=1))
