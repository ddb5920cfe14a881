"""The process in which a port or a backend runs; `qkvac.isolation.origins.command` starts it.

It answers requests, one at a time, over two pipes of its own; its standard output and error
belong to the port. It judges nothing: it reports what was returned, how long that took, and what
the call did to its inputs and to the floating-point environment.
"""

from __future__ import annotations

import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NoReturn

import ml_dtypes
import numpy as np

from qkvac.isolation import fpenv, origins
from qkvac.isolation.channel import Channel, confine, is_out_of_memory
from qkvac.isolation.protocol import Message, ProtocolError, frames
from qkvac.spec.inputs.layouts import apply
from qkvac.spec.registry import choose
from qkvac.targets.arrays import Array, ResultError, by_quantity, first_line, to_numpy
from qkvac.targets.forms import load
from qkvac.targets.packages import OWN, adapter
from qkvac.targets.ports import FRAMEWORKS, Port, PortError, known_functions

BACKENDS: Final = frozenset({"torch", "jax", "tensorflow"})
"""Frameworks of which a backend's process gets one."""

TEXT_LIMIT: Final = 20_000
STATUSES: Final = ("error", "unsupported", "skipped")

_clock = time.perf_counter
_shares_memory = np.shares_memory


class Watched:
    """An input as it was before a call."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self._root = array.base if isinstance(array.base, np.ndarray) else None
        self._before = self._state()

    def _state(self) -> tuple[object, ...]:
        array = self.array
        gaps = self._root.tobytes() if self._root is not None else b""
        return array.shape, array.strides, array.dtype, array.flags.writeable, array.tobytes(), gaps

    @property
    def changed(self) -> bool:
        """Whether any bit of it differs now, gaps between its entries included."""
        return self._state() != self._before


class Server:
    """Answers requests about one port or one backend's adapter."""

    def __init__(self, load: Callable[[str], Port] = load, *, interruptible: bool = False) -> None:
        """`load` finds a port by its name; Ctrl-C is an error of the port or `interruptible`."""
        self._load = load
        self._interruptible = interruptible
        self._functions: Mapping[str, Callable[..., Any]] = MappingProxyType({})
        self._adapter: Any = None
        self._module: Any = None
        self._earlier: dict[str, Array] = {}
        self._restore: Callable[[], None] = fpenv.keep()
        self._environment = ""

    def answer(self, request: Message) -> Message:
        """The reply to a request, whatever the port does that can be caught."""
        operation = request.header.get("op")
        handlers = {
            "hello": self._hello,
            "call": self._call,
            "budget": self._budget,
            "describe": self._describe,
            "devices": self._devices,
        }
        handler = handlers.get(operation) if isinstance(operation, str) else None
        if handler is None:
            return failure("error", f"the worker knows no operation {operation!r}")
        recursion = sys.getrecursionlimit()
        try:
            return handler(request)
        except PortError as error:
            return failure("error", str(error))
        except BaseException as error:
            if self._interruptible and isinstance(error, KeyboardInterrupt):
                raise
            return self._failure(error)
        finally:
            sys.setrecursionlimit(recursion)
            flush()

    @property
    def spoilt(self) -> bool:
        """Whether the floating-point environment could not be put back after a call."""
        return fpenv.describe() != self._environment

    def _failure(self, error: BaseException) -> Message:
        status = getattr(error, "status", None) if self._module is not None else None
        if status not in STATUSES:
            status = "unsupported" if isinstance(error, NotImplementedError) else "error"
        reason = first_line(error)
        if isinstance(error, NotImplementedError) and str(error):
            reason = reason.partition(": ")[2]
        if isinstance(error, ResultError):
            return failure(status, str(error))
        if isinstance(error, MemoryError) or is_out_of_memory(reason):
            reason = f"out of memory: {reason}"
        return failure(status, reason, _traceback(error))

    def _hello(self, request: Message) -> Message:
        header = request.header
        notes: tuple[str, ...] = ()
        if "port" in header:
            port = self._load(header["port"])
            self._functions, declaration, notes = port.functions, port.declaration, port.notes
            versions: object = dict(port.versions)
        else:
            declaration = self._open(header["backend"])
            versions = self._ask("versions", {})
        self._environment = fpenv.describe()
        self._restore = fpenv.keep()
        return Message(
            {
                "ok": True,
                "declaration": declaration,
                "functions": list(self._functions),
                "versions": plain(versions),
                "devices": plain(self._ask("devices", [])),
                "notes": list(notes),
                "environment": {
                    "python": platform.python_version(),
                    "numpy": np.__version__,
                    "ml_dtypes": ml_dtypes.__version__,
                    "pid": os.getpid(),
                    "threads": os.environ.get("OMP_NUM_THREADS", ""),
                    "fp_environment": self._environment,
                    "backend": plain(self._ask("environment", {})),
                    "frameworks": sorted(
                        name for name in FRAMEWORKS - {"numpy"} if sys.modules.get(name)
                    ),
                },
            }
        )

    def _describe(self, request: Message) -> Message:
        """What a backend's module says of itself, without opening it."""
        module = adapter(request.header["backend"])
        declared = plain(module.QKVAC)
        if not isinstance(declared, dict):
            return failure("error", f"QKVAC is a {type(module.QKVAC).__name__}, not a dict")
        if not callable(getattr(module, "open", None)):
            return failure("error", "its module has no function `open`")
        unavailable = getattr(module, "unavailable", None)
        modes = declared.get("modes", ["default"])
        obstacles = {}
        if callable(unavailable) and isinstance(modes, list):
            obstacles = {str(mode): plain(unavailable(mode)) for mode in modes}
        return Message({"ok": True, "declaration": declared, "obstacles": obstacles})

    def _open(self, name: str) -> Any:
        self._module = adapter(name)
        needed = self._module.QKVAC.get("requires", ()) if name in OWN else BACKENDS
        for other in BACKENDS.difference([needed] if isinstance(needed, str) else needed):
            # TensorFlow imports JAX where it finds it; one process runs one framework.
            sys.modules.setdefault(other, None)  # type: ignore[arg-type]
        mode, device = os.environ["QKVAC_MODE"], os.environ["QKVAC_DEVICE"]
        try:
            self._adapter = self._module.open(mode, device)
        except ImportError as error:
            if not hasattr(error, "status"):
                error.status = "skipped"  # type: ignore[attr-defined]
            raise
        self._functions = {
            name: getattr(self._adapter, name)
            for name in known_functions()
            if callable(getattr(self._adapter, name, None))
        }
        return plain(self._module.QKVAC)

    def _ask(self, name: str, default: object) -> object:
        """What the adapter, or else its module, says about itself."""
        for owner in (self._adapter, self._module):
            if callable(getattr(owner, name, None)):
                return getattr(owner, name)()
        return default

    def _devices(self, request: Message) -> Message:
        return Message({"ok": True, "devices": plain(self._ask("devices", []))})

    def _budget(self, request: Message) -> Message:
        budget = getattr(self._adapter, "budget", None)
        if budget is None:
            return failure("unsupported", "operations are not recorded")
        positional, keywords, _ = self._arguments(request)
        found = budget(request.header["profile"], *positional, **keywords)
        return Message({"ok": True, "budget": plain(found)})

    def _arguments(
        self, request: Message
    ) -> tuple[list[Array | None], dict[str, Any], dict[str, Watched]]:
        """The arguments of the function of a request, each array laid out as asked for."""
        function = known_functions()[request.header["profile"]]
        layouts = request.header.get("layouts", {})
        inputs = {}
        for name, array in request.arrays.items():
            inputs[name] = apply(array, layouts.get(name, "C"))
            if inputs[name].tobytes() != array.tobytes():
                raise ProtocolError(f"input {name} changed its values while it was laid out")
        attributes = {**request.header.get("attributes", {}), **inputs}
        keywords = {name: attributes[name] for name in function.keywords if name in attributes}
        unknown = attributes.keys() - {*function.positional, *function.keywords}
        if unknown:
            raise ProtocolError(f"{function.name} takes no {min(unknown)!r}")
        watched = {name: Watched(array) for name, array in inputs.items()}
        return [inputs.get(name) for name in function.positional], keywords, watched

    def _call(self, request: Message) -> Message:
        profile = request.header["profile"]
        if profile not in self._functions:
            return failure("unsupported", f"{profile} is not offered")
        implementation, function = self._functions[profile], known_functions()[profile]
        positional, keywords, watched = self._arguments(request)
        if wanted := request.header.get("wanted"):
            if not hasattr(self._adapter, "subset"):
                return failure("unsupported", "all gradients come at once")
            implementation = partial(self._adapter.subset, profile, wanted)
        limits = request.header.get("limits", {})
        times, runs, copies = [], [], []
        before = plain(self._ask("evidence", {}))
        try:
            for _ in range(request.header.get("repeat", 1)):
                start = _clock()
                result = implementation(*positional, **keywords)
                named = by_quantity(result, function.returned(keywords), function.optional)
                run = {name: readable(name, value) for name, value in named.items()}
                times.append(_clock() - start)
                runs.append(run)
                fitting = {n: a for n, a in run.items() if a.size <= limits.get(n, a.size)}
                copies.append({name: array.copy(order="C") for name, array in fitting.items()})
        finally:
            changed = self._reset_environment()
        first = copies[0]
        aliases = self._aliases(runs[0], {name: input.array for name, input in watched.items()})
        self._earlier = {name: runs[-1][name] for name in copies[-1]}
        return Message(
            {
                "ok": True,
                "seconds": times[0],
                "times": times,
                "excess": {
                    name: [array.dtype.name, list(array.shape)]
                    for name, array in runs[0].items()
                    if name not in first
                },
                "mutated": [name for name, input in watched.items() if input.changed],
                "aliases": aliases,
                "unstable": _differing(first, copies[1:]),
                "overwritten": _differing(first, runs[:1]),
                "fp_environment": changed or "unchanged",
                "evidence": plain(self._ask("evidence", {})),
                "evidence_before": before,
            },
            first,
        )

    def _reset_environment(self) -> str:
        """What a call changed in the floating-point environment, which is put back."""
        now = fpenv.describe()
        if now == self._environment:
            return ""
        self._restore()
        return now or "defaults restored"

    def _aliases(self, outputs: Mapping[str, Array], inputs: Mapping[str, Array]) -> list[Any]:
        """Pairs of an output and an input, another output, or an output of the last call."""
        others = {**inputs, **{f"earlier {name}": a for name, a in self._earlier.items()}}
        found = []
        for name, array in outputs.items():
            found += [[name, other] for other, a in others.items() if _overlap(array, a)]
            others[name] = array
        return found


def readable(name: str, value: object) -> Array:
    """The array of one quantity; raises ResultError naming it."""
    try:
        return to_numpy(value)
    except ResultError as error:
        raise ResultError(f"{name} is {error}") from error


def failure(status: str, reason: str, text: str = "") -> Message:
    return Message({"ok": False, "status": status, "reason": reason, "traceback": text})


def plain(value: object, depth: int = 8) -> Any:
    """A value of an adapter as JSON: NumPy's numbers, dataclasses, tuples, sets; else its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic) and depth:
        return plain(value.item(), depth - 1)
    if is_dataclass(value) and not isinstance(value, type) and depth:
        return plain({f.name: getattr(value, f.name) for f in fields(value)}, depth - 1)
    if isinstance(value, Mapping) and depth:
        return {str(k): plain(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [plain(item, depth - 1) for item in items]
    return str(value)[:1000]


def flush() -> None:
    """Brings printed text to the judging process before the reply."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:
            continue


def _differing(first: Mapping[str, Array], others: list[dict[str, Array]]) -> list[str]:
    return [
        name
        for name, array in first.items()
        if any(name not in o or array.tobytes() != o[name].tobytes() for o in others)
    ]


def _overlap(x: Array, y: Array) -> bool:
    try:
        return _shares_memory(x, y, 10_000)  # type: ignore[arg-type]
    except Exception:
        return False


def _traceback(error: BaseException) -> str:
    """The port's part of a traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace))[-TEXT_LIMIT:]
    except Exception:
        return ""


def rehearse() -> None:
    """Goes once through all that a worker does, before a port can be in the way of an import.

    Python and libraries import some of themselves only when they are asked for it: to format an
    error, to compile a name with a letter like Ω.
    """
    X = np.ones((1, 1))
    for attention in (lambda *arrays: {"C": arrays[0]}, lambda *arrays: arrays[9]):
        server = Server(partial(_only, attention))
        server.answer(Message({"op": "hello", "port": ""}))
        request = {"op": "call", "profile": "attention", "layouts": {"X": "strided"}}
        frames(server.answer(Message(request, dict.fromkeys(("X", "Wq", "Wk", "Wv"), X))))
    with suppress(PortError):
        load("")


def _only(function: Callable[..., Any], name: str) -> Port:
    return Port({"attention": function}, {})


def main(
    requests: int, replies: int, lifeline: int, memory: int, places: str, profiles: list[str]
) -> NoReturn:
    """Serves until it is killed, or the judging process is gone.

    Takes the ends of three pipes, a limit in bytes (0: none), the port's PYTHONPATH, and files and
    modules that declare profiles besides the suite's own.
    """
    choose(profiles)
    for fd in (requests, replies, lifeline):
        os.set_inheritable(fd, False)
    confine(memory, lifeline)
    channel = Channel(requests, replies)
    server = Server()
    rehearse()
    origins.give(places)
    while True:
        try:
            request = channel.receive()
        except EOFError:
            os._exit(0)
        reply = server.answer(request)
        header = {**reply.header, "id": request.header.get("id"), "spoilt": server.spoilt}
        try:
            channel.send(Message(header, reply.arrays))
        except ProtocolError as error:
            channel.send(Message({**header, **failure("error", str(error)).header}))
