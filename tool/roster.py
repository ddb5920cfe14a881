"""The roster: which subjects there are and what each of them offers.

An adapter's part is static. A port has to be asked what it offers, and a framework which devices
it finds; that happens once, before anything is enumerated, and the answers can be sent on as text
to other processes that take part in the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from qkvac import breadth
from qkvac.cells import COMMAND, FILES, LOADED, Subject
from qkvac.commands import is_command
from qkvac.declaration import DTYPES, Declaration, DeclarationError, find, load, parse
from qkvac.forms import is_model, label
from qkvac.limits import limits
from qkvac.process import (
    BackendError,
    Greeting,
    PortError,
    Target,
    Worker,
    WorkerError,
    default_memory,
)
from qkvac.registry import Backend, accelerators, backend, backends, names
from qkvac.selection import Options, Selection
from qkvac.spec.attention import Arithmetic
from qkvac.spec.cases import Case
from qkvac.spec.presentation import presented
from qkvac.spec.registry import known_profiles
from qkvac.spec.visibility import has_blind_queries
from qkvac.texts import short
from qkvac.usage import UsageError, unknown

if TYPE_CHECKING:
    from qkvac.batches import CommandRunner

ALL: Final = "all"
"""The selection of every device that there is."""

Kept: TypeAlias = "dict[str, Worker | CommandRunner]"
"""What can go on to answer, by subject id."""


@dataclass(frozen=True)
class Entry:
    """A subject and what it offers."""

    subject: Subject
    raw: Mapping[str, Any] = field(hash=False)
    """Its declaration, as it was declared."""
    functions: tuple[str, ...]
    """Profiles that it has functions for."""
    versions: Mapping[str, str] = field(hash=False)
    skipped: str = ""
    """Why it cannot run on this machine; "" if it can."""
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Dtypes that it does not offer after all, and why."""
    notes: tuple[str, ...] = ()
    exported: Mapping[str, Mapping[str, str]] | None = field(default=None, hash=False)
    """SHA-256 of the inputs that were given out, by dtype and id; None where all cases are put."""

    @cached_property
    def declaration(self) -> Declaration:
        return parse(self.raw, functions=self.functions, source=self.subject.backend)

    @property
    def shapes(self) -> str:
        """How many shapes are run: ALL, SOME or FEW of `qkvac.breadth`; of ports all."""
        if self.subject.port is not None:
            return breadth.ALL
        return self.declaration.shapes.get(self.subject.mode, breadth.ALL)

    @property
    def compiled(self) -> bool:
        """Whether every shape is compiled anew, so that few shapes are run."""
        return self.shapes == breadth.FEW

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Offered dtypes, widest first."""
        return tuple(d for d in DTYPES if d in self.declaration.dtypes and d not in self.refused)

    def arithmetic(self, dtype: str) -> Arithmetic:
        """The declared arithmetic model in a dtype."""
        fields = self.declaration.arithmetic(dtype, self.subject.mode, self.subject.device)
        return Arithmetic.for_dtype(dtype, fields)

    def lacks(self, case: Case) -> str:
        """Why the case is not put to the subject, in a few words; "" if it is.

        What the subject takes alone and the case is not, or what it needs and the subject does not
        support.
        """
        if case.layouts and self.subject.form == COMMAND:
            return FILES
        chosen = self.declaration.conventions
        other = known_profiles()[case.profile].base and chosen["empty_row"] != "zeros"
        if other and has_blind_queries(case, chosen["causal_alignment"]):
            # Only weights of 0 make these gradients what the derived equations say.
            return "empty rows"
        outside = self.declaration.only.excludes(case)
        return outside or min(case.needs - self.declaration.supports, default="")

    @property
    def target(self) -> Target:
        mode, device = self.subject.mode, self.subject.device
        if self.subject.port is not None:
            return Target(port=self.subject.port, mode=mode, device=device)
        return Target(backend=self.subject.backend, mode=mode, device=device)


@dataclass(frozen=True)
class Roster:
    """All subjects of a run, in order."""

    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    """What was left out of it, one line each."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "notes": self.notes,
                "entries": [
                    {**{f.name: getattr(e, f.name) for f in fields(e)}, "subject": vars(e.subject)}
                    for e in self.entries
                ],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Roster:
        table = json.loads(text)
        entries = tuple(
            Entry(
                **{
                    **entry,
                    "subject": Subject(**entry["subject"]),
                    "functions": tuple(entry["functions"]),
                    "notes": tuple(entry["notes"]),
                }
            )
            for entry in table["entries"]
        )
        return cls(entries, tuple(table["notes"]))


LOADING: Final = 180.0
"""Seconds for a framework to load; a port has four timeouts, like the first call of a mode."""


def worker(entry: Entry, options: Options) -> Worker:
    """The handle of a subject's process, which is not started yet."""
    return _worker(entry.target, options)


def memory_limit(device: str, options: Options) -> int | None:
    """Bytes that a process may use on a device; None on one with a memory of its own."""
    on_host = device.partition(":")[0] == "cpu"
    return (options.memory or default_memory()) if on_host else None


def _worker(target: Target, options: Options) -> Worker:
    limit = memory_limit(target.device, options)
    load = LOADING if target.port is None else min(LOADING, 4 * options.timeout)
    return Worker(
        target, threads=options.threads, memory=limit, timeout=options.timeout, load_timeout=load
    )


def survey(
    selection: Selection,
    options: Options,
    keep: Kept | None = None,
    resident: Worker | None = None,
) -> Roster:
    """The roster of a selection; asks a port, and frameworks for devices, where that is needed.

    A `resident` stands in for the process of the selection's port.

    Processes that can go on to answer cases are put into `keep`, by subject id; without it all
    are ended. Raises UsageError for a name that does not exist or a port that cannot be loaded.
    """
    selection.check()
    with ExitStack() as stack:
        if resident is not None:
            found = _port(selection, options, stack, keep, resident)
        elif selection.graded or (selection.port is not None and is_command(selection.port)):
            from qkvac import filesubjects

            found = filesubjects.survey(selection, options, keep)
        elif selection.port is not None:
            found = _port(selection, options, stack, keep)
        else:
            found = _adapters(selection, options, stack)
    offered = {dtype for entry in found.entries for dtype in (*entry.dtypes, *entry.refused)}
    wanted = selection.dtypes or DTYPES
    if not offered & set(wanted):
        raise UsageError(
            f"{', '.join(e.subject.name for e in found.entries)} offers "
            f"{', '.join(d for d in DTYPES if d in offered)}, not {', '.join(wanted)}"
        )
    return found


# --- adapters ------------------------------------------------------------------------------


def _adapters(selection: Selection, options: Options, stack: ExitStack) -> Roster:
    entries = list[Entry]()
    notes = list[str]()
    seen = dict[str, tuple[str, ...]]()
    for chosen, modes in _chosen(selection):
        if chosen.absence:
            if selection.backends:
                raise UsageError(chosen.absence + chosen.remedy)
            notes.append(chosen.absence)
            continue
        devices = seen[chosen.name] = _devices(chosen, selection, options, stack)
        versions = {chosen.name: chosen.version}
        functions = tuple(chosen.declaration.profiles)
        chosen_devices = wanted(selection.devices, devices)
        for kind in selection.devices:
            if kind in chosen.declaration.devices and not wanted((kind,), devices):
                notes.append(f"{chosen.name} finds no {kind} here")
        for mode in modes:
            for device in chosen_devices:
                if not chosen.declaration.runs_on(mode, device):
                    continue
                subject = Subject(chosen.name, mode, device)
                obstacle = chosen.obstacle(mode)
                entries.append(Entry(subject, chosen.raw, functions, versions, obstacle))
    for device in selection.devices:
        if not any(wanted((device,), devices) for devices in seen.values()):
            raise unknown("device", device, dict.fromkeys(d for ds in seen.values() for d in ds))
    if seen and not entries:
        # Modes that are for other devices than there are.
        raise UsageError(
            f"{', '.join(selection.backends)}: for none of the devices that there are: "
            f"{', '.join(dict.fromkeys(sum(seen.values(), ())))}"
        )
    return Roster(tuple(entries), tuple(notes))


def _chosen(selection: Selection) -> Iterator[tuple[Backend, tuple[str, ...]]]:
    """Backends with the modes to run, in the order of the registry."""
    if not selection.backends:
        for every in backends():
            yield every, every.modes
        return
    wanted = dict[str, list[str]]()
    for text in selection.backends:
        name, _, mode = text.partition("/")
        modes = backend(name).modes
        if mode and mode not in modes:
            raise unknown("backend", text, [f"{name}/{known}" for known in modes])
        wanted.setdefault(name, []).extend([mode] if mode else modes)
    for name in names():
        if name in wanted:
            yield backend(name), tuple(m for m in backend(name).modes if m in wanted[name])


def _devices(
    chosen: Backend, selection: Selection, options: Options, stack: ExitStack
) -> tuple[str, ...]:
    """Devices of a backend; its framework is asked only where there can be more than the CPU."""
    asked = any(device not in ("cpu", ALL) for device in selection.devices)
    if chosen.declaration.devices == ("cpu",) or not (asked or accelerators()):
        return ("cpu",)
    if selection.devices == ("cpu",):
        return ("cpu",)
    target = Target(backend=chosen.name, mode=chosen.modes[0], device="cpu")
    try:
        return stack.enter_context(_worker(target, options)).hello().devices or ("cpu",)
    except (WorkerError, BackendError):
        return ("cpu",)


def wanted(selected: tuple[str, ...], found: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the found devices that are selected; "cuda" selects the first of "cuda:0", ….

    Without a selection all are, and with "all".
    """
    if not selected or ALL in selected:
        return found
    exact = [d for d in found if d in selected]
    kinds = [d for d in selected if d not in found]
    first = [next((f for f in found if f.partition(":")[0] == kind), None) for kind in kinds]
    return tuple(dict.fromkeys([*exact, *(d for d in first if d)]))


# --- a port --------------------------------------------------------------------------------


def _port(
    selection: Selection,
    options: Options,
    stack: ExitStack,
    keep: Kept | None,
    resident: Worker | None = None,
) -> Roster:
    text = selection.port or ""
    process = resident or _worker(Target(port=text, mode="default", device="cpu"), options)
    guard = stack.enter_context(ExitStack())
    guard.callback(process.close)
    try:
        greeting = process.hello()
        file = find([text]) if is_model(text) else None
        raw = load(greeting.declaration, file=file, assignments=selection.declare)
        declaration = parse(raw, functions=greeting.functions, source=text)
    except (WorkerError, PortError, DeclarationError) as error:
        raise UsageError(str(error)) from error
    for device in selection.devices:
        if not wanted((device,), declaration.devices):
            raise unknown("device", device, declaration.devices)
    modes = declaration.modes
    devices = wanted(selection.devices or ("cpu",), declaration.devices) or declaration.devices
    if resident is not None:
        # It is loaded in one mode, on one device, and not again.
        modes, devices = modes[:1], devices[:1]
    entries = []
    for mode in modes:
        for device in devices:
            form = LOADED if resident else ""
            subject = Subject(short(label(text)), mode, device, text, form, selection.declared)
            version = {declaration.name or short(label(text)): declaration.version}
            entries.append(
                Entry(
                    subject,
                    raw,
                    greeting.functions,
                    {**greeting.versions, **version},
                    notes=greeting.notes,
                )
            )
    if not declaration.dtypes_declared and "float64" in (selection.dtypes or DTYPES):
        refused = _float64(process, greeting, entries[0], selection)
        entries = [replace(entry, refused=refused) for entry in entries]
    mine = (entries[0].subject.mode, entries[0].subject.device) == ("default", "cpu")
    if keep is not None and (mine or resident is not None):
        guard.pop_all()
        keep[entries[0].subject.id] = process
    return Roster(tuple(entries), greeting.notes)


def _float64(
    process: Worker, greeting: Greeting, entry: Entry, selection: Selection
) -> dict[str, str]:
    """Whether a port without declared dtypes offers float64: what comes back for the first case.

    Accuracy plays no part. A port that dies on it is not excused.
    """
    for profile in entry.declaration.profiles:
        for case in selection.chosen(profile) if profile in known_profiles() else ():
            if "float64" not in case.dtypes or entry.lacks(case):
                continue
            inputs = case.inputs("float64")
            outcome = process.call(
                profile,
                presented(profile, inputs, entry.declaration.conventions),
                dtype="float64",
                attributes=case.attributes,
                limits=limits(case, inputs),
            )
            if outcome.status in ("error", "unsupported"):
                return {"float64": f"float64 in, {outcome.reason}"}
            for name in case.results:
                result = outcome.outputs.get(name)
                if result is not None and result.dtype.name != "float64":
                    return {"float64": f"float64 in, {result.dtype.name} out"}
            return {}
    return {}
