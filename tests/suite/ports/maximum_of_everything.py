"""One maximum is shared by all rows: low rows vanish."""

from functools import partial

from _base import port, softmax

attention = port(softmax=partial(softmax, maximum=lambda S: S.max()))
