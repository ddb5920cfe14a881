"""qkvac: do all these implementations compute the same attention?"""

__version__ = "0.1.0"
