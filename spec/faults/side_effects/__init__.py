"""Functions that compute the right formula and do something else besides."""
