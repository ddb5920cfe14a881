"""Ports that are loaded already: called where they are, in the process that asks.

Their calls go through the same server as those of a worker, on the thread that asks, since
frameworks keep settings for each thread. A crash, a hang or an exhausted memory cannot be kept
from the caller here; judging is left to other processes all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from qkvac.isolation import fpenv
from qkvac.isolation.process import Arrays, Greeting, Target, Worker, greeting
from qkvac.isolation.protocol import Message
from qkvac.isolation.worker import Server
from qkvac.targets.ports import Port, PortError, declared_by, inspect, known_functions
from qkvac.usage import UsageError, unknown


class Resident(Worker):
    """A loaded port in the place of a worker. It knows neither timeouts nor a memory limit."""

    def __init__(self, name: str, port: Port) -> None:
        super().__init__(Target(port=name))
        self._server = Server(lambda _: port, interruptible=True)
        self._theirs = fpenv.keep()
        """Puts the caller's floating-point environment back."""

    def hello(self) -> Greeting:
        if self._greeting is None:
            theirs = fpenv.describe()
            header = self.request({"op": "hello", "port": self.target.port}, {}).header
            if fpenv.describe():
                self.close()
                raise PortError(f"the calling thread computes with {theirs}; put that back first")
            self._greeting = greeting(header, 0.0)
        return self._greeting

    def request(
        self, header: Mapping[str, Any], arrays: Arrays, timeout: float | None = None
    ) -> Message:
        """Answers in the caller's floating-point environment, and leaves the default one."""
        self._theirs()
        try:
            # The port may keep or change what it is given; a worker's arrays are copies too.
            given = {name: array.copy() for name, array in arrays.items()}
            return self._server.answer(Message(header, given))
        finally:
            fpenv.reset()

    def close(self) -> None:
        self._theirs()


def name_of(port: object) -> str:
    """What a loaded port is called in results."""
    if isinstance(port, Mapping):
        return "mapping"
    return str(getattr(port, "__name__", type(port).__name__))


def port_of(port: object, profile: str = "") -> Port:
    """The functions of a module, a mapping, another object that has them, or a single function.

    `profile` says what a single function computes; without it, its name does. Raises UsageError.
    """
    try:
        return _port(port, name_of(port), profile)
    except PortError as error:
        raise UsageError(str(error)) from error


def _port(port: object, name: str, profile: str) -> Port:
    if profile:
        if profile not in known_functions():
            raise unknown("profile", profile, known_functions())
        if not callable(port):
            raise UsageError(f"profile={profile!r} is for a single function, not for {name}")
        return Port({profile: port}, declared_by(name, port))
    if isinstance(port, Mapping):
        for key in port:
            if key != "QKVAC" and key not in known_functions():
                raise unknown("function", str(key), known_functions())
        functions = {key: value for key, value in port.items() if key != "QKVAC"}
        for key, value in functions.items():
            if not callable(value):
                raise UsageError(f"{key} is of type {type(value).__name__}, not a function")
        return Port(functions, declared_by(name, SimpleNamespace(QKVAC=port.get("QKVAC"))))
    offers = any(callable(getattr(port, function, None)) for function in known_functions())
    if callable(port) and not offers and not isinstance(port, ModuleType):
        if name not in known_functions():
            raise UsageError(f'what does {name} compute? say it by profile="attention"')
        return Port({name: port}, declared_by(name, port))
    return inspect(name, port)
