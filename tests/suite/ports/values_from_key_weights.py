"""V is made with Wk."""

from _base import port, project

attention = port(project=lambda X, Wq, Wk, Wv: project(X, Wq, Wk, Wk))
