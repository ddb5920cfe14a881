"""Hard attention: the first best key takes all the weight."""

import numpy as np
from _base import port

attention = port(softmax=lambda S: np.eye(len(S), dtype=S.dtype)[S.argmax(axis=1)])
