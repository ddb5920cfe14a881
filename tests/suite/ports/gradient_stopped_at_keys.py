"""Keys are detached, as a cache of them is: no gradient goes on to Wk."""

import numpy as np
from _gradients import gradients

attention_gradients = gradients(of_keys=lambda dS, Q: np.zeros_like(Q))
