"""2^x takes the place of e^x."""

from functools import partial

import numpy as np
from _base import port, softmax

attention = port(softmax=partial(softmax, exp=np.exp2))
