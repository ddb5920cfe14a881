"""The weights are rounded to float16 on their way to the values."""

import numpy as np
from _base import context, port

attention = port(context=lambda A, V: context(A.astype(np.float16).astype(V.dtype), V))
