"""The softmax runs down the columns of the scores: over queries, not over keys."""

from _base import port, softmax

attention = port(softmax=lambda S: softmax(S.T).T)
