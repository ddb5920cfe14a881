"""Large embeddings are projected in float64, others in their own dtype."""

import numpy as np
from _base import port, project


def chosen(*inputs):
    if abs(inputs[0]).max() <= 4:
        return project(*inputs)
    widened = project(*(x.astype(np.float64) for x in inputs))
    return tuple(Y.astype(inputs[0].dtype) for Y in widened)


attention = port(project=chosen)
