"""Certified values, kept so that no process computes them twice.

A certifier stands in for `enclosure.certify`. It remembers by content: spec version,
equations, input bytes, sizes and dtype. The inputs of the cases are the same in every run, so
what is expensive to certify for them (float64) is also kept on disk; what depends on a port's own
outputs, and what is cheap, is kept in memory only. The folder can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from qkvac.isolation import tensors
from qkvac.isolation.protocol import Message, ProtocolError, read, write
from qkvac.isolation.tensors import TensorFileError
from qkvac.spec.attention import SPEC_VERSION
from qkvac.spec.enclosures import enclosure
from qkvac.spec.enclosures.enclosure import Enclosure
from qkvac.spec.grammar.equations import Program
from qkvac.spec.symbolic.shapes import contract
from qkvac.spec.verdicts.comparisons import Certify

Array = np.ndarray[Any, Any]
Certified = dict[str, Enclosure]
Shape = tuple[int, ...]

KEPT: Final = ("float64",)
"""Dtypes whose certified values take longer to compute than to read from a disk."""
ENTRY: Final = 256 << 20
"""Bytes of an entry on the disk."""
MEMORY: Final = 256 << 20
"""Bytes of certified values that one process remembers."""


def default_folder() -> Path:
    """QKVAC_CACHE, else `qkvac` in the user's cache folder."""
    if os.environ.get("QKVAC_CACHE"):
        return Path(os.environ["QKVAC_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "qkvac"


class Certifier:
    """`certify`, remembering. Never fails because of its folder; safe among other processes."""

    def __init__(self, folder: Path | None, certify: Certify = enclosure.certify) -> None:
        """Keeps on disk below `folder`, or in memory only if that is None."""
        self._folder = folder
        self._certify = certify
        self._recent: OrderedDict[str, tuple[str, Certified]] = OrderedDict()
        self._bytes = 0
        self.computed = 0
        """How many times values had to be computed."""
        self.warnings: list[str] = []

    def __call__(
        self,
        program: Program,
        inputs: Mapping[str, Array],
        sizes: Mapping[str, Any],
        dtype: str,
        *,
        wanted: Collection[str] | None = None,
        bound: Mapping[str, Array] | None = None,
        exact: Collection[str] = (),
        conventions: Mapping[str, str] | None = None,
    ) -> Certified:
        chosen = dict(conventions or {})
        names = f"{','.join(wanted or ())} {','.join(sorted(exact))}"
        key = _key(program, inputs, sizes, dtype, f"{names} {sorted(chosen.items())}")
        limits = _digest(bound or {})
        on_disk = self._folder is not None and wanted is None and dtype in KEPT

        def stored(key: str) -> tuple[str, Certified] | None:
            return self._stored(key, _shapes(program, inputs, sizes))

        for place in (self._remembered, stored if on_disk else _nothing):
            known = place(key)
            if known is not None and (known[0] == limits or _sharp(known[1], bound)):
                if key not in self._recent:
                    self._remember(key, known)
                return known[1]
        values = self._certify(
            *(program, inputs, sizes, dtype),
            wanted=wanted,
            bound=bound,
            exact=exact,
            conventions=chosen,
        )
        self.computed += 1
        self._remember(key, (limits, values))
        if on_disk:
            self._store(key, limits, values)
        return values

    def _remembered(self, key: str) -> tuple[str, Certified] | None:
        known = self._recent.get(key)
        if known is not None:
            self._recent.move_to_end(key)
        return known

    def _remember(self, key: str, entry: tuple[str, Certified]) -> None:
        replaced = self._recent.pop(key, None)
        self._recent[key] = entry
        self._bytes += _weight(entry[1]) - (_weight(replaced[1]) if replaced else 0)
        while self._bytes > MEMORY and len(self._recent) > 1:
            _, (_, oldest) = self._recent.popitem(last=False)
            self._bytes -= _weight(oldest)

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / "certified" / key[:2] / key

    def _stored(self, key: str, shapes: Mapping[str, Shape]) -> tuple[str, Certified] | None:
        """What the file of a key holds; None if there is none, or none that can be trusted."""
        path = self._path(key)
        try:
            data = tensors.read(path.parent, path.name, ENTRY)
        except TensorFileError as error:
            self._warn(f"the cache cannot be read, going on without it: {path} {error}")
            self._folder = None
            return None
        if data is None:
            return None
        try:
            limits, values = _decoded(data, key)
            if {name: value.shape for name, value in values.items()} != shapes:
                raise ValueError("its values have other names or shapes")
            return limits, values
        except (ProtocolError, EOFError, KeyError, TypeError, ValueError):
            self._warn(f"a damaged cache entry is computed again: {path}")
            return None

    def _store(self, key: str, limits: str, values: Certified) -> None:
        """Writes an entry so that other processes see all of it or nothing."""
        if self._folder is None:
            return
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with open(descriptor, "wb") as file:
                    file.write(_encoded(key, limits, values))
                os.replace(name, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            self._warn(f"the cache cannot be written, going on without it: {error}")
            self._folder = None

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def _shapes(
    program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, Any]
) -> dict[str, Shape]:
    """The shape of every quantity of a program."""
    given = {tensor.name: inputs[tensor.name].shape for tensor in program.inputs}
    declared = contract(program, sizes, given=given)
    return {e.target.name: declared[e.target.name] for e in program.equations}


def _nothing(key: str) -> None:
    return None


def _key(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, Any],
    dtype: str,
    names: str,
) -> str:
    text = [SPEC_VERSION, dtype, names, repr(sorted(sizes.items()))]
    text += [equation.text for equation in program.equations]
    return _digest({tensor.name: inputs[tensor.name] for tensor in program.inputs}, text)


def _digest(arrays: Mapping[str, Array], text: Sequence[str] = ()) -> str:
    state = hashlib.sha256("\n".join(text).encode())
    for name, array in arrays.items():
        plain = np.ascontiguousarray(array)
        state.update(f"\n{name} {plain.dtype.name}{plain.shape}\n".encode())
        state.update(plain.tobytes())
    return state.hexdigest()


def _sharp(values: Certified, bound: Mapping[str, Array] | None) -> bool:
    """Whether known values are as sharp as they would be computed for these bounds."""
    return all(
        bool(np.all(values[name].sharp(limit)))
        for name, limit in (bound or {}).items()
        if name in values
    )


def _weight(values: Certified) -> int:
    return sum(part.nbytes for value in values.values() for part in value.arrays().values())


def _encoded(key: str, limits: str, values: Certified) -> bytes:
    """An entry as bytes: a SHA-256, then a frame of the protocol."""
    arrays = {
        f"{name}.{part}": array
        for name, value in values.items()
        for part, array in value.arrays().items()
    }
    buffer = io.BytesIO()
    write(buffer, Message({"key": key, "limits": limits, "names": list(values)}, arrays))
    frame = buffer.getvalue()
    return hashlib.sha256(frame).digest() + frame


def _decoded(data: bytes, key: str) -> tuple[str, Certified]:
    """The limits and values of an entry; raises an error for one that is damaged or another's."""
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise ValueError("the checksum is wrong")
    stream = io.BufferedReader(io.BytesIO(data[32:]))
    message = read(stream)
    if stream.read(1):
        raise ValueError("it goes on after its end")
    if message.header["key"] != key:
        raise ValueError("it is of another question")
    return message.header["limits"], {
        name: Enclosure.from_arrays(
            {
                key.rpartition(".")[2]: array
                for key, array in message.arrays.items()
                if key.rpartition(".")[0] == name
            }
        )
        for name in message.header["names"]
    }
