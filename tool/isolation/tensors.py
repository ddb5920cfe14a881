"""The safetensors format: arrays by name, and text, in bytes that depend on nothing else.

The library's writer orders metadata anew in every process, and its NumPy module writes the wrong
values for an array that is not C-contiguous and cannot read bfloat16. So files are written here,
in one canonical form, and read by the library's own parser, which takes nothing on trust.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import ml_dtypes
import numpy as np

from qkvac.texts import line, short

Array = np.ndarray[Any, Any]

DTYPES: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "BF16": np.dtype(ml_dtypes.bfloat16),
        **{
            name: np.dtype(numpy)
            for name, numpy in {
                **{"F64": "f8", "F32": "f4", "F16": "f2", "BOOL": "?"},
                **{"I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1"},
                **{"U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1"},
            }.items()
        },
    }
)
"""The format's names of dtypes that NumPy and ml_dtypes have."""

HEADER_ALLOWANCE: Final = 1 << 20
"""Bytes that a file may have besides its arrays."""


class TensorFileError(Exception):
    """A file that holds no readable arrays; the message is one line."""


def encode(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """A file's bytes: the same for equal arrays and text, whatever the platform.

    Arrays may lie in memory in any way. Wide dtypes come first, so that all are aligned.
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    parts = list[bytes]()
    offset = 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        array = arrays[name]
        parts.append(_little(array))
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(parts[-1])],
        }
        offset += len(parts[-1])
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def decode(data: bytes) -> dict[str, Array]:
    """The arrays of a file; raises TensorFileError for what is none, or has an odd dtype."""
    from safetensors import SafetensorError, deserialize

    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise TensorFileError(f"is no safetensors file: {line(error, 200)}") from error
    return {name: _array(name, tensor) for name, tensor in found}


def read(folder: Path, name: str, limit: int) -> bytes | None:
    """The bytes of a plain file in a folder, None where there is none.

    `name` is ours, what lies under it is not: links and devices are not followed, and nothing is
    read of a file with more than `limit` bytes. Raises TensorFileError.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(folder / name, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        what = "is a link" if (folder / name).is_symlink() else f"cannot be read: {error.strerror}"
        raise TensorFileError(what) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise TensorFileError("is not a plain file")
        if status.st_size > limit:
            raise TensorFileError(f"has {status.st_size} bytes; at most {limit} are expected")
        data = bytearray()
        # A file may go on growing while it is read.
        while len(data) <= limit and (chunk := os.read(descriptor, limit + 1 - len(data))):
            data += chunk
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise TensorFileError(f"grew beyond the {limit} bytes that are expected")
    return bytes(data)


def _little(array: Array) -> bytes:
    """The entries in C order, little-endian."""
    flat = np.array(array, order="C").reshape(-1)
    size = flat.dtype.itemsize
    return flat.view(f"u{size}").astype(f"<u{size}", copy=False).tobytes()


def _array(name: str, tensor: Mapping[str, Any]) -> Array:
    shown = short(name)
    dtype = DTYPES.get(tensor["dtype"])
    if dtype is None:
        odd = short(tensor["dtype"])
        raise TensorFileError(f"holds {shown} in the dtype {odd}, which is not read")
    data = bytes(tensor["data"])
    shape = tuple(tensor["shape"])
    if math.prod(shape) * dtype.itemsize != len(data):
        raise TensorFileError(f"holds {shown} in another size than its shape {short(list(shape))}")
    if dtype.kind == "b" and data.strip(b"\0\1"):
        raise TensorFileError(f"holds {shown} with bytes that are no booleans")
    size = dtype.itemsize
    native = np.frombuffer(data, f"<u{size}").astype(f"u{size}")
    try:
        return native.view(dtype).reshape(shape)
    except ValueError as error:
        raise TensorFileError(f"holds {shown} with an odd shape: {line(error, 200)}") from error
