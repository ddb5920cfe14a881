"""Vectors: the cases as files, for a port in any language on any machine.

A vector is one call: the inputs of a case in one dtype, or those of a relation that is asked about
it (see `relations`). Its file has the same bytes everywhere; what is written to it never depends
on the port. A port writes a file of the same name that holds the quantities.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from qkvac import jsons
from qkvac.checks import relations
from qkvac.draw import draw_of
from qkvac.execution.plan import Job
from qkvac.isolation import tensors
from qkvac.isolation.tensors import Array, TensorFileError
from qkvac.spec import registry
from qkvac.spec.attention import SPEC_VERSION, Arithmetic
from qkvac.spec.cases.catalogue import Case
from qkvac.spec.conventions import presented
from qkvac.spec.symbolic.shapes import contract
from qkvac.spec.verdicts.comparisons import Certify
from qkvac.spec.verdicts.verdict import Question
from qkvac.subjects.selection import known_case
from qkvac.texts import short
from qkvac.usage import UsageError

MANIFEST: Final = "manifest.json"
EXPECTED: Final = "expected"
"""The folder of certified values in a folder of vectors."""
FORMAT: Final = 1
"""Version of the manifest's form."""
MANIFEST_LIMIT: Final = 64 << 20
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
WIDEST: Final = 8
"""Bytes of an entry of the widest dtype that a port may return."""


@dataclass(frozen=True)
class Vector:
    """The inputs of one call."""

    id: str
    """The case's id, that of a relation with its name and number: `…/33x20x7/scaling-1`."""
    case: Case
    dtype: str
    inputs: Mapping[str, Array] = field(hash=False, compare=False)

    @property
    def file(self) -> str:
        return file_name(self.id, self.dtype)

    @cached_property
    def data(self) -> bytes:
        """The bytes of the file."""
        metadata = {
            "attributes": _json(self.case.attributes),
            "case": self.id,
            "layouts": _json(self.case.layouts),
            "profile": self.case.profile,
            "spec": SPEC_VERSION,
        }
        return tensors.encode(self.inputs, metadata)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The vector's entry in the manifest."""
        names = {dtype: name for name, dtype in tensors.DTYPES.items()}
        return {
            "case": self.id,
            "dtype": self.dtype,
            "file": self.file,
            "sha256": self.digest,
            "profile": self.case.profile,
            "attributes": dict(self.case.attributes),
            "layouts": dict(self.case.layouts),
            "sizes": dict(self.case.sizes),
            "why": self.case.why,
            "inputs": {
                name: {"dtype": names[array.dtype], "shape": list(array.shape)}
                for name, array in self.inputs.items()
            },
            "outputs": {plain(name): list(shape) for name, shape in outputs(self.case).items()},
        }


def file_name(id: str, dtype: str) -> str:
    """The name of the files that hold a vector's inputs and its outputs."""
    return f"{id.replace('/', '__')}.{dtype}.safetensors"


def declined_name(id: str, dtype: str) -> str:
    """The name of the file that a port writes instead where it is not made for the inputs."""
    return file_name(id, dtype).removesuffix(".safetensors") + ".unsupported"


def related(id: str, check: str, number: int) -> str:
    """The id of a further call, counted from 1, that a check makes about a case."""
    return f"{id}/{check}-{number}"


def vectors(job: Job, conventions: Mapping[str, str] = _EMPTY) -> Iterator[Vector]:
    """All calls of a job: the case, then what its checks ask besides.

    Inputs are stored as the spec has them, or as a port that declares `conventions` takes them.
    """
    case, dtype = job.case, job.dtype
    inputs = case.inputs(dtype)

    def vector(id: str, given: Mapping[str, Array]) -> Vector:
        return Vector(id, case, dtype, presented(case.profile, given, conventions))

    yield vector(case.id, inputs)
    for check in job.checks:
        for number, changed in enumerate(relations.further(check, case, dtype, inputs), 1):
            yield vector(related(case.id, check, number), changed)


def outputs(case: Case) -> dict[str, tuple[int, ...]]:
    """The shape of every quantity of a case."""
    given = {name: array.shape for name, array in case.inputs(case.dtypes[0]).items()}
    shapes = contract(case.program, dict(case.bindings), given=given)
    return {name: shapes[name] for name in case.quantities}


def size_limit(case: Case) -> int:
    """Bytes that a file with the quantities of a case may have."""
    entries = sum(int(np.prod(shape)) for shape in outputs(case).values())
    return WIDEST * entries + tensors.HEADER_ALLOWANCE


def plain(name: str) -> str:
    """A quantity's name in files: `scores` for Ω."""
    return "scores" if name == "Ω" else name


# --- writing ---------------------------------------------------------------------------------


def write(folder: Path, all_vectors: Iterable[Vector], entropy: str = "") -> int:
    """Writes vectors and their manifest into an existing folder; how many they were."""
    entries = []
    for vector in all_vectors:
        (folder / vector.file).write_bytes(vector.data)
        entries.append(vector.to_json())
    (folder / MANIFEST).write_bytes(manifest(entries, entropy))
    return len(entries)


def manifest(entries: Iterable[Mapping[str, Any]], entropy: str = "") -> bytes:
    """The bytes of a manifest; `entropy` is what further draws come from."""
    vectors = list(entries)
    table: dict[str, Any] = {"format": FORMAT, "spec": SPEC_VERSION, "vectors": vectors}
    if own := registry.digests(str(vector["case"]).partition("/")[0] for vector in vectors):
        table["equations"] = own
    if entropy:
        table["entropy"] = entropy
    return (json.dumps(table, indent=1, sort_keys=True) + "\n").encode("ascii")


def expected(case: Case, dtype: str, certify: Certify) -> bytes:
    """Certified values and bounds of a case, under the default arithmetic model of the dtype.

    For every quantity `name`, in float64: the true value lies within name.hi + name.lo ±
    name.radius, and a result may be off by name.bound. `exact` in the metadata lists quantities
    of which every bit is required.
    """
    arithmetic = Arithmetic.for_dtype(dtype)
    question = Question(case, dtype, arithmetic, certify=certify)
    arrays = {}
    for name in case.quantities:
        enclosure = question.certified[name]
        parts = {"hi": enclosure.hi, "lo": enclosure.lo, "radius": enclosure.radius}
        parts["bound"] = question.bounds[name]
        arrays.update({f"{plain(name)}.{part}": array for part, array in parts.items()})
    required = [plain(n) for n in case.quantities if question.asks_bits(n)]
    metadata = {
        "arithmetic": _json(asdict(arithmetic)),
        "case": case.id,
        "exact": _json(required),
        "spec": SPEC_VERSION,
    }
    return tensors.encode(arrays, metadata)


def _json(value: Any) -> str:
    plain_value = dict(value) if isinstance(value, Mapping) else value
    return json.dumps(plain_value, sort_keys=True, separators=(",", ":"))


# --- reading ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Manifest:
    """What a folder of vectors says that it holds."""

    digests: Mapping[str, Mapping[str, str]] = field(hash=False)
    """SHA-256 of a vector's file, by dtype and id."""
    draws: int
    """The largest number of a further draw among the cases."""
    entropy: str = ""
    """What they were drawn from, "" for seeds that everybody knows."""


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; raises UsageError for one that is not of this spec."""
    path = folder / MANIFEST
    try:
        data = tensors.read(folder, MANIFEST, MANIFEST_LIMIT)
        if data is None:
            raise UsageError(f"{path}: no such file; `qkvac export {folder}` writes it")
        table = jsons.loads(data)
        version = table["spec"]
        entries = [(str(e["case"]), str(e["dtype"]), str(e["sha256"])) for e in table["vectors"]]
        own = dict[str, str](table.get("equations", {}))
    except TensorFileError as error:
        raise UsageError(f"{path} {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no manifest of qkvac: {type(error).__name__}") from error
    if version != SPEC_VERSION:
        raise UsageError(
            f"{path} is of spec {str(version)[:20]!r}, this is spec {SPEC_VERSION}: export again"
        )
    known = registry.digests(own)
    for profile, digest in own.items():
        if known.get(profile, digest) != digest:
            raise UsageError(f"{path} is of other equations of {short(profile)}: export again")
    digests = dict[str, dict[str, str]]()
    draws, drawn_from = 0, set[str]()
    for id, dtype, digest in entries:
        base = _case_of(id)
        if base is None or dtype not in base.dtypes:
            raise UsageError(f"{path} names {short(id)!r} in {short(dtype)!r}, which is no case")
        digests.setdefault(dtype, {})[id] = digest
        _, draw = draw_of(base.id)
        if draw is not None:
            draws = max(draws, draw.number)
            drawn_from.add(draw.entropy)
    if len(drawn_from) > 1:
        raise UsageError(f"{path} names draws from several entropies: export again")
    return Manifest(digests, draws, "".join(drawn_from))


def _case_of(id: str) -> Case | None:
    """The case that a vector is about; None for an unknown id."""
    base, _, last = id.rpartition("/")
    check, _, number = last.rpartition("-")
    if check in relations.IN_ADVANCE and number.isdecimal():
        id = base
    return known_case(id)
