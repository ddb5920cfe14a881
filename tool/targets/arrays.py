"""What a port returned, as NumPy arrays by quantity.

A port may return arrays of any library that NumPy can read, in any of the three forms of
result. The functions used here are bound when this module is imported, before any port runs, so
that a port that patches NumPy changes its own results only.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from qkvac.texts import NAME, line, short

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPES: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "bfloat16": np.dtype(ml_dtypes.bfloat16),
        **{
            name: np.dtype(name)
            for name in (
                *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
                *("uint64", "float16", "float32", "float64", "complex64", "complex128"),
            )
        },
    }
)
"""What may cross the border. Complex numbers may, so that the judge can say what is wrong."""

_asarray = np.asarray
_from_dlpack = np.from_dlpack
_generic = np.generic
_ndarray = np.ndarray
_bfloat16 = np.dtype(ml_dtypes.bfloat16)
_bits16 = np.dtype(np.uint16)


class ResultError(Exception):
    """A port returned something that holds no quantities; the message says what, in one line."""


def by_quantity(result: object, returns: Sequence[str], optional: Sequence[str]) -> dict[str, Any]:
    """The result of a function, of any form, as {quantity: what the port returned for it}.

    A mapping is keyed by quantity ("scores" is Ω), a tuple holds `returns` in order, and so does
    a list of gradients, which is what tapes hand out; anything else is the last of `returns`. None
    stands for a quantity that is not reported. `optional` quantities are known in mappings only.
    Raises ResultError.
    """
    if isinstance(result, Mapping):
        named = dict(result.items())
        known = [*returns, *optional]
        for key in named:
            name = "Ω" if key == "scores" else key
            if name not in known:
                raise ResultError(_unknown(key, known))
        if "scores" in named:
            if "Ω" in named:
                raise ResultError("the result holds both 'scores' and 'Ω', which are the same")
            named["Ω"] = named.pop("scores")
    elif isinstance(result, tuple) or (isinstance(result, list) and returns[0].startswith("d")):
        if len(result) != len(returns):
            raise ResultError(
                f"the result is a {type(result).__name__} of {len(result)}; "
                f"expected {len(returns)}: "
                f"{', '.join(returns)} (a dict may leave some out)"
            )
        named = dict(zip(returns, result, strict=True))
    elif result is None:
        raise ResultError("the function returned None")
    elif isinstance(result, list) and len(result) == len(returns) > 1:
        raise ResultError(
            f"the result is a list of {len(result)}, not an array; a tuple of them is "
            f"{', '.join(returns)}"
        )
    elif len(returns) > 1 and returns[0].startswith("d"):
        raise ResultError(
            f"one array was returned; expected {len(returns)} gradients: {', '.join(returns)}"
        )
    else:
        named = {returns[-1]: result}
    return {name: value for name, value in named.items() if value is not None}


def to_numpy(value: object) -> Array:
    """The array that `value` holds, in native byte order; it may share memory with `value`.

    Accepts NumPy arrays and scalars, Python numbers, torch tensors by duck typing (detached,
    brought to the CPU, bfloat16 through a 16-bit view), and what offers `__array__`, `numpy()`,
    DLPack or the buffer protocol. Raises ResultError for lists, strings, objects and anything
    that fails while it is read.
    """
    try:
        array = _read(value)
    except (ResultError, MemoryError):
        raise
    except Exception as error:
        kind = type(value).__name__
        raise ResultError(
            f"{_a(kind)} that cannot be read as an array: {first_line(error)}"
        ) from error
    if array.dtype.name == "bfloat16" and array.dtype != _bfloat16:
        array = array.view(_bits16).view(_bfloat16)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not any(array.dtype == dtype for dtype in DTYPES.values()):
        raise ResultError(f"{_a(type(value).__name__)} of dtype {array.dtype}, which has no bounds")
    return array


def first_line(error: BaseException) -> str:
    """One printable line that names an exception, whatever its own `__str__` does."""
    name = type(error).__name__
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = []
    text = line(lines[0]) if lines else ""
    return f"{line(name)}: {text}" if text else line(name)


def _read(value: Any) -> Array:
    if isinstance(value, _ndarray):
        mask = getattr(value, "mask", None)
        if isinstance(mask, _ndarray) and mask.any():
            raise ResultError("a masked array with masked entries")
        return _asarray(value)
    if isinstance(value, _generic | bool | int | float | complex):
        return _asarray(value)
    if isinstance(value, list | tuple | str | bytes | set | frozenset | Mapping):
        mend = "; np.asarray(…, X.dtype) makes one" if isinstance(value, list | tuple) else ""
        raise ResultError(f"{_a(type(value).__name__)}, not an array{mend}")
    if hasattr(value, "detach") and hasattr(value, "cpu") and hasattr(value, "numpy"):
        return _from_torch(value)
    readers: list[tuple[str, Callable[[Any], Array]]] = [
        ("__array__", _asarray),
        ("__dlpack__", _from_dlpack),
        ("numpy", lambda v: _asarray(v.numpy())),
    ]
    failure: Exception | None = None
    for attribute, reader in readers:
        if hasattr(value, attribute):
            try:
                array = reader(value)
            except MemoryError:
                raise
            except Exception as error:
                failure = failure or error
            else:
                if isinstance(array, _ndarray) and array.dtype.kind != "O":
                    return array
    if failure is not None:
        raise failure
    try:
        buffer = memoryview(value)
    except TypeError:
        raise ResultError(f"{_a(type(value).__name__)}, not an array") from None
    return _asarray(buffer)


def _from_torch(tensor: Any) -> Array:
    tensor = tensor.detach().cpu()
    for resolve in ("resolve_conj", "resolve_neg"):
        if hasattr(tensor, resolve):
            tensor = getattr(tensor, resolve)()
    if str(tensor.dtype).endswith("bfloat16"):
        bits = _asarray(tensor.view(sys.modules["torch"].int16).numpy())
        return bits.view(_bits16).view(_bfloat16)
    return _asarray(tensor.numpy())


def _unknown(key: object, known: Sequence[str]) -> str:
    names = ", ".join("Ω (or 'scores')" if name == "Ω" else name for name in known)
    same = [name for name in known if isinstance(key, str) and name.lower() == key.lower()]
    near = same or difflib.get_close_matches(str(key)[:NAME], known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"the result holds an unknown quantity {short(key)!r}{hint} (known: {names})"


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
