"""The survey: who takes part in a run, found out before anything is enumerated.

An adapter's part is static. A port has to be asked what it offers, and a framework which devices
it finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import starmap

from qkvac.cells import LOADED, Subject
from qkvac.execution import file_subjects
from qkvac.execution.batches import Kept
from qkvac.isolation.commands import is_command
from qkvac.isolation.process import (
    BackendError,
    Greeting,
    PortError,
    Target,
    Worker,
    WorkerError,
)
from qkvac.spec.conventions import presented
from qkvac.spec.registry import known_profiles
from qkvac.subjects.limits import limits
from qkvac.subjects.registry import Backend, accelerators, backend, backends, names
from qkvac.subjects.roster import ALL, Entry, Roster, process_of, wanted
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.declaration import DTYPES, DeclarationError, find, load, parse
from qkvac.targets.forms import is_model, label
from qkvac.texts import short
from qkvac.usage import UsageError, unknown


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
            found = file_subjects.survey(selection, options, keep)
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
    absent = dict[str, list[str]]()
    seen = dict[str, tuple[str, ...]]()
    for chosen, modes in _chosen(selection):
        if chosen.absence:
            if selection.backends:
                raise UsageError(chosen.absence + chosen.remedy)
            absent.setdefault(chosen.absence, []).append(chosen.name)
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
    return Roster(tuple(entries), (*starmap(_left_out, absent.items()), *notes))


def _left_out(absence: str, names: Sequence[str]) -> str:
    """Why some backends are left out, and which, where that does not say it."""
    others = [name for name in names if name not in absence.split()]
    return f"{absence}: without {', '.join(others)}" if others else absence


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
        return stack.enter_context(process_of(target, options)).hello().devices or ("cpu",)
    except (WorkerError, BackendError):
        return ("cpu",)


# --- a port --------------------------------------------------------------------------------


def _port(
    selection: Selection,
    options: Options,
    stack: ExitStack,
    keep: Kept | None,
    resident: Worker | None = None,
) -> Roster:
    text = selection.port or ""
    process = resident or process_of(Target(port=text, mode="default", device="cpu"), options)
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
