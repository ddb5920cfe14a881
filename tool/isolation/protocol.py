"""Frames between the judging process and a worker: a JSON header and raw array bytes.

A frame is an 8-byte big-endian header length, the header in UTF-8, then the bytes of every array
in C order, one after another. The header's table says name, dtype, shape and byte count of each
array. Nothing is unpickled and nothing is allocated before it was checked, because the other side
runs code that nobody vouches for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np

from qkvac import jsons
from qkvac.targets.arrays import DTYPES

HEADER_LIMIT: Final = 8 << 20
"""Largest header in bytes."""
DATA_LIMIT: Final = 8 << 30
"""Largest sum of array bytes in one frame."""
ARRAY_LIMIT: Final = 256
"""Most arrays in one frame."""
RANK_LIMIT: Final = 32
AXIS_LIMIT: Final = 1 << 48
NAME_LIMIT: Final = 200


class ProtocolError(Exception):
    """The other side sent, or was about to be sent, something that is no frame."""


@dataclass(frozen=True)
class Message:
    """A header of JSON values, and named arrays."""

    header: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)


def frames(message: Message) -> list[memoryview]:
    """The buffers of a message, in order; array bytes are copied only where not contiguous.

    Raises ProtocolError for a dtype that may not cross, a header that is not JSON, or a size
    over the limits.
    """
    table = []
    buffers = []
    for name, array in message.arrays.items():
        dtype = next((known for known, d in DTYPES.items() if d == array.dtype), None)
        if dtype is None:
            raise ProtocolError(f"array {name!r} has dtype {array.dtype}, which is not sent")
        data = array.reshape(-1).view(np.uint8)
        table.append([name, dtype, list(array.shape), data.nbytes])
        buffers.append(data.data)
    header = {**message.header, "arrays": table}
    try:
        text = jsons.dumps(header, allow_nan=False).encode()
        _table(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the header is not JSON: {error}") from error
    if len(text) > HEADER_LIMIT:
        raise ProtocolError(f"the header has {len(text)} bytes; at most {HEADER_LIMIT} are sent")
    return [memoryview(len(text).to_bytes(8, "big") + text), *buffers]


def incoming() -> Generator[memoryview, None, Message]:
    """Reads one frame without doing input: yields each buffer that has to be filled completely.

    The message is the generator's return value; raises ProtocolError as soon as a filled buffer
    is wrong.
    """
    prefix = bytearray(8)
    yield memoryview(prefix)
    size = int.from_bytes(prefix, "big")
    if size > HEADER_LIMIT:
        raise ProtocolError(f"a header of {size} bytes is announced; at most {HEADER_LIMIT}")
    text = bytearray(size)
    if size:
        yield memoryview(text)
    try:
        header = jsons.loads(bytes(text))
    except ValueError as error:
        raise ProtocolError(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ProtocolError(f"the header is a JSON {type(header).__name__}, not an object")
    arrays = {}
    for name, dtype, shape, size in _table(header):
        data = np.empty(size, np.uint8)
        if size:
            yield data.data
        if dtype.kind == "b" and data.size and data.max() > 1:
            raise ProtocolError(f"array {name!r} holds bytes that are not bool")
        try:
            arrays[name] = data.view(dtype).reshape(shape)
        except ValueError as error:
            raise ProtocolError(f"array {name!r}: {error}") from error
    del header["arrays"]
    return Message(header, arrays)


def write(stream: BinaryIO, message: Message) -> None:
    """Writes one message and flushes; raises ProtocolError, or OSError from the stream."""
    for buffer in frames(message):
        stream.write(buffer)
    stream.flush()


def read(stream: BinaryIO) -> Message:
    """Reads one message from a buffered stream.

    Raises EOFError where the stream ends before a frame, ProtocolError where it ends within one
    or where the frame is wrong.
    """
    receiver = incoming()
    wanted = next(receiver)
    first = True
    while True:
        done = 0
        while done < len(wanted):
            count = stream.readinto(wanted[done:])  # type: ignore[attr-defined]
            if not count:
                if first and not done:
                    raise EOFError("the other side closed the stream")
                raise ProtocolError(f"the frame ends {len(wanted) - done} bytes early")
            done += count
        first = False
        try:
            wanted = next(receiver)
        except StopIteration as end:
            message: Message = end.value
            return message


def _table(header: Mapping[str, Any]) -> list[tuple[str, np.dtype[Any], tuple[int, ...], int]]:
    """The checked array table of a header."""
    table = header.get("arrays")
    if not isinstance(table, list) or len(table) > ARRAY_LIMIT:
        raise ProtocolError("the header has no table of arrays, or one that is too long")
    checked = []
    names = set()
    total = 0
    for entry in table:
        if not isinstance(entry, list) or len(entry) != 4:
            raise ProtocolError("an entry of the array table is not [name, dtype, shape, bytes]")
        name, dtype_name, shape, size = entry
        if not isinstance(name, str) or not 0 < len(name) <= NAME_LIMIT or name in names:
            raise ProtocolError("an array has no name, a repeated name or one that is too long")
        names.add(name)
        dtype = DTYPES.get(dtype_name) if isinstance(dtype_name, str) else None
        if dtype is None:
            raise ProtocolError(f"array {name!r} has dtype {dtype_name!r}, which is not received")
        if not isinstance(shape, list) or len(shape) > RANK_LIMIT:
            raise ProtocolError(f"array {name!r} has no shape, or one of too many axes")
        if not all(type(axis) is int and 0 <= axis <= AXIS_LIMIT for axis in shape):
            raise ProtocolError(f"array {name!r} has an axis that is no size")
        if type(size) is not int or math.prod(shape) * dtype.itemsize != size:
            raise ProtocolError(f"array {name!r}: shape and dtype do not make {size!r} bytes")
        total += size
        checked.append((name, dtype, tuple(shape), size))
    if total > DATA_LIMIT:
        raise ProtocolError(f"{total} bytes of arrays are announced; at most {DATA_LIMIT}")
    return checked
