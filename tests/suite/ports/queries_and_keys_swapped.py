"""Q is made with Wk and K with Wq."""

from _base import port, project

attention = port(project=lambda X, Wq, Wk, Wv: project(X, Wk, Wq, Wv))
