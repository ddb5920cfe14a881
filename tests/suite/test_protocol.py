"""Frames between processes: what is written is read, and nothing else is."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qkvac.isolation.protocol import (
    ARRAY_LIMIT,
    HEADER_LIMIT,
    RANK_LIMIT,
    Message,
    ProtocolError,
    frames,
    incoming,
    read,
    write,
)
from qkvac.targets.arrays import DTYPES

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def any_array(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays of every dtype that may cross, of any bits, contiguous or not."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    size = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    array = np.frombuffer(data, dtype).reshape(shape)
    return array.T if draw(st.booleans()) else array


def encode(message: Message) -> bytes:
    stream = io.BytesIO()
    write(stream, message)
    return stream.getvalue()


def frame(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "big") + text + data


@given(
    st.dictionaries(st.text().filter(lambda key: key != "arrays"), JSON, max_size=4),
    st.dictionaries(st.text(min_size=1, max_size=9), any_array(), max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read(
    header: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]]
) -> None:
    message = read(io.BytesIO(encode(Message(header, arrays))))
    assert message.header == header
    assert list(message.arrays) == list(arrays)
    for name, array in arrays.items():
        assert message.arrays[name].dtype == array.dtype
        assert message.arrays[name].shape == array.shape
        assert message.arrays[name].tobytes() == array.tobytes()
        assert message.arrays[name].flags.c_contiguous
        assert message.arrays[name].flags.writeable


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_corrupted_frame_is_refused_or_harmless(data: st.DataObject) -> None:
    arrays = {"X": np.arange(6, dtype="f4").reshape(2, 3), "mask": np.array([True, False])}
    good = bytearray(encode(Message({"op": "call", "id": 3}, arrays)))
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        at = data.draw(st.integers(0, len(good) - 1))
        if kind == "flip":
            good[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del good[at : at + data.draw(st.integers(1, 40))]
        else:
            good[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        if not good:
            break
    try:
        message = read(io.BytesIO(bytes(good)))
    except (ProtocolError, EOFError):
        return
    assert sum(a.nbytes for a in message.arrays.values()) <= len(good)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises((ProtocolError, EOFError)):
        read(io.BytesIO(b"\x00" * 7 + noise[:1] + noise))


def test_every_truncation_is_noticed() -> None:
    whole = encode(Message({"op": "call"}, {"X": np.ones((2, 2))}))
    with pytest.raises(EOFError):
        read(io.BytesIO(b""))
    for size in range(1, len(whole)):
        with pytest.raises(ProtocolError, match="early"):
            read(io.BytesIO(whole[:size]))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        pytest.param(b"{", "not JSON", id="not-json"),
        pytest.param(b"\xff\xff", "not JSON", id="not-utf8"),
        pytest.param(b"[" * 100_000, "not JSON", id="deep"),
        pytest.param(b'{"arrays": [], "x": NaN}', "not JSON", id="nan"),
        pytest.param(pickle.dumps({"arrays": []}), "not JSON", id="pickle"),
        pytest.param([1], "not an object", id="list"),
        pytest.param({}, "no table", id="no-table"),
        pytest.param({"arrays": [["X"]]}, "not \\[name", id="short-entry"),
        pytest.param({"arrays": [["X", "object", [1], 8]]}, "dtype", id="object"),
        pytest.param({"arrays": [["X", "<f4", [1], 4]]}, "dtype", id="spelling"),
        pytest.param({"arrays": [["X", ["float32"], [1], 4]]}, "dtype", id="dtype-list"),
        pytest.param({"arrays": [["X", "float32", 3, 4]]}, "shape", id="shape-number"),
        pytest.param({"arrays": [["X", "float32", [-1], -4]]}, "axis", id="negative"),
        pytest.param({"arrays": [["X", "float32", [True], 4]]}, "axis", id="bool-axis"),
        pytest.param({"arrays": [["X", "float32", [1.0], 4]]}, "axis", id="float-axis"),
        pytest.param({"arrays": [["X", "float32", [0, 1 << 60], 0]]}, "axis", id="huge-axis"),
        pytest.param(
            {"arrays": [["X", "float32", [0, 1 << 40, 1 << 40], 0]]}, "X", id="huge-empty"
        ),
        pytest.param({"arrays": [["X", "float32", [2], 4]]}, "do not make", id="bytes"),
        pytest.param({"arrays": [["X", "float32", [1] * (RANK_LIMIT + 1), 4]]}, "axes", id="rank"),
        pytest.param(
            {"arrays": [["X", "bool", [1], 1], ["X", "bool", [1], 1]]}, "name", id="twice"
        ),
        pytest.param({"arrays": [["", "bool", [1], 1]]}, "name", id="nameless"),
        pytest.param({"arrays": [[3, "bool", [1], 1]]}, "name", id="name-number"),
        pytest.param(
            {"arrays": [["X", "float64", [1 << 40], 8 << 40]]}, "announced", id="terabytes"
        ),
        pytest.param(
            {"arrays": [[str(i), "bool", [0], 0] for i in range(ARRAY_LIMIT + 1)]},
            "long",
            id="many",
        ),
    ],
)
def test_a_wrong_header_is_refused_before_anything_is_allocated(header: object, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        read(io.BytesIO(frame(header, b"\x00" * 64)))


def test_a_long_header_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="announced"):
        read(io.BytesIO((HEADER_LIMIT + 1).to_bytes(8, "big")))


def test_bytes_that_are_no_bool_are_refused() -> None:
    with pytest.raises(ProtocolError, match="not bool"):
        read(io.BytesIO(frame({"arrays": [["mask", "bool", [2], 2]]}, b"\x01\x02")))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        pytest.param(Message({"x": float("nan")}), "not JSON", id="nan"),
        pytest.param(Message({"x": object()}), "not JSON", id="object"),
        pytest.param(Message({}, {"X": np.array([None])}), "dtype", id="object-array"),
        pytest.param(Message({}, {"X": np.array(["a"])}), "dtype", id="text-array"),
        pytest.param(Message({}, {"X": np.ones(2, ">f8")}), "dtype", id="byte-order"),
        pytest.param(Message({}, {"": np.ones(2)}), "name", id="nameless"),
        pytest.param(Message({"x": "a" * HEADER_LIMIT}), "at most", id="long"),
    ],
)
def test_what_would_be_refused_is_not_sent(message: Message, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        frames(message)


def test_frames_follow_one_another() -> None:
    stream = io.BytesIO(encode(Message({"id": 1})) + encode(Message({"id": 2}, {"X": np.ones(1)})))
    assert read(stream).header == {"id": 1}
    assert read(stream).arrays["X"].tolist() == [1.0]
    with pytest.raises(EOFError):
        read(stream)


def test_large_arrays_are_not_copied_on_the_way_out() -> None:
    array = np.ones((64, 64))
    assert np.shares_memory(np.frombuffer(frames(Message({}, {"X": array}))[1], "u1"), array)


def test_nothing_is_allocated_that_was_not_announced() -> None:
    reader = incoming()
    assert len(next(reader)) == 8
