"""The scaled scores pass through a soft cap of 50."""

import numpy as np
from _base import port, softmax

attention = port(softmax=lambda S: softmax(50 * np.tanh(S / 50)))
