"""The scale is taken from X's width d: right only where c = d."""

from _base import port

attention = port(scale=lambda n, d, c: d**-0.5)
