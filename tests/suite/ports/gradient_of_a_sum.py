"""Whatever comes in, what goes back is the gradient of the sum of C."""

import numpy as np
from _gradients import gradients

attention_gradients = gradients(cotangent=np.ones_like)
