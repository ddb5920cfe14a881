"""e^x is taken as (1 + x/1024)^1024."""

from functools import partial

import numpy as np
from _base import port, softmax

attention = port(softmax=partial(softmax, exp=lambda z: np.maximum(1 + z / 1024, 0) ** 1024))
