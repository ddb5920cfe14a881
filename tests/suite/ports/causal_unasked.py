"""A causal mask is always on."""

import numpy as np
from _base import port, softmax

attention = port(softmax=lambda S: softmax(np.where(np.tri(len(S), dtype=bool), S, -np.inf)))
