"""K is made with Wq."""

from _base import port, project

attention = port(project=lambda X, Wq, Wk, Wv: project(X, Wq, Wq, Wv))
