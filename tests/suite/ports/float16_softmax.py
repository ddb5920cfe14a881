"""The softmax is carried out in float16."""

import numpy as np
from _base import port, softmax

attention = port(softmax=lambda S: softmax((S - S.max(axis=1, keepdims=True)).astype(np.float16)))
