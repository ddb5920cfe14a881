"""The scores of the first query are used for every query."""

import numpy as np
from _base import port, softmax

attention = port(softmax=lambda S: softmax(np.broadcast_to(S[:1], S.shape)))
