"""Arithmetic that is poorer than its dtype, for ports to be caught with."""

import numpy as np

TENSOR_FLOAT = FLOAT16 = 11
"""Significand bits of TF32, to which some devices round float32 factors, and of float16."""
BFLOAT16 = 8


def rounded(x, bits):
    """x rounded to nearest, ties to even, at `bits` significand bits; the dtype stays."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits).astype(x.dtype, copy=False)


def running_product(x, y, bits):
    """x @ y, term after term, every partial sum rounded to `bits` significand bits."""
    total = np.zeros((x.shape[0], y.shape[1]), x.dtype)
    for k in range(x.shape[1]):
        total = rounded(total + x[:, k, None] * y[k], bits)
    return total


def polynomial_exponential(z, degree):
    """e^z as 2^whole · p(fraction), with a polynomial through the Chebyshev points."""
    p = np.polynomial.Chebyshev.interpolate(np.exp2, degree, domain=[-0.5, 0.5])
    halvings = z / np.log(2)
    whole = np.rint(halvings)
    return np.ldexp(p(halvings - whole), whole.astype(int)).astype(z.dtype)
