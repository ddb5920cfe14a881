"""The scores lose their sign."""

from _base import port, scores

attention = port(scores=lambda Q, K: abs(scores(Q, K)))
