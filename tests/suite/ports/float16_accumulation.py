"""Every partial sum of a product is rounded to 11 bits."""

from functools import partial

from _base import port_with
from _numerics import FLOAT16, running_product

attention = port_with(partial(running_product, bits=FLOAT16))
