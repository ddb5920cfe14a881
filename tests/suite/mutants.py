"""Files of strangers for fuzzing: valid ones with something changed, and others from nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

NASTY = (
    *(b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\n", b'"', b"{", b"}", b"[", b"]", b",", b":", b"="),
    *(
        b"1e999",
        b"-1",
        b"NaN",
        b"Infinity",
        b"null",
        b"true",
        b'"\\ud800"',
        b"\\u0000",
        b"\x1b[31m",
    ),
    *(b"9" * 30, b"9" * 5000, b"[" * 970, b'{"a":' * 970, b"a." * 2000, b"[[", b"1e-999", b"0x1"),
    *(b"\x1b[31m", "\u202e".encode()),
)
"""Bytes that readers stumble over."""

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
        st.sampled_from([10**30, 10**4000, -1, 2**63, 1e308, "", "inf", "\x1b[2J", "x" * 3000]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
"""Plain values of the wrong type, mostly."""


@st.composite
def changed_bytes(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid file with up to three pieces of it replaced."""
    data = valid
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.integers(0, 12)))
        new = draw(st.one_of(st.sampled_from(NASTY), st.binary(max_size=8)))
        data = data[:start] + new + data[stop:]
    return data


@st.composite
def changed_value(draw: st.DrawFn, valid: Any) -> Any:
    """A valid value of which one part, at any depth, is another value or absent."""
    if isinstance(valid, Mapping | list) and valid and draw(st.integers(0, 4)):
        keys = list(valid) if isinstance(valid, Mapping) else list(range(len(valid)))
        key = draw(st.sampled_from(keys))
        copy: Any = dict(valid) if isinstance(valid, Mapping) else list(valid)
        if draw(st.integers(0, 9)):
            copy[key] = draw(changed_value(valid[key]))
        else:
            del copy[key]
        return copy
    return draw(VALUES)


def dumped(value: Any) -> bytes:
    """JSON as strangers write it: numbers without end, halves of surrogate pairs."""
    try:
        return json.dumps(value).encode()
    except ValueError:
        return b"9" * 5000
