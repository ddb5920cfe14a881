"""The context comes back in float64, whatever X is."""

import numpy as np
from _base import context, port

QKVAC = {"dtypes": ["float32"]}

attention = port(context=lambda A, V: context(A, V).astype(np.float64))
