"""The cache of certified values: it remembers by content, and nothing can go wrong with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkvac.engine.cache
from qkvac.digests import canonical, digest, same_bits
from qkvac.engine.cache import Certifier, default_folder
from qkvac.spec.attention import Arithmetic
from qkvac.spec.bounds.rounding import bounds
from qkvac.spec.enclosures import enclosure
from qkvac.spec.enclosures.enclosure import Enclosure
from qkvac.spec.formats import dtype as numpy_dtype
from qkvac.spec.registry import forward_profiles
from qkvac.subjects.selection import find_case
from qkvac.tests.suite.engine_ports import SMALL, run, statuses, write

CASE = find_case(f"attention/{SMALL}")
PROGRAM = forward_profiles()["attention"].program()


def ask(certifier: Certifier, dtype: str = "float64", **options: Any) -> dict[str, Enclosure]:
    return certifier(PROGRAM, CASE.inputs(dtype), CASE.sizes, dtype, **options)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def equal(x: Mapping[str, Enclosure], y: Mapping[str, Enclosure]) -> bool:
    return x.keys() == y.keys() and all(
        np.array_equal(x[name].arrays()[part], y[name].arrays()[part])
        for name in x
        for part in x[name].arrays()
    )


def test_what_is_on_disk_is_not_computed_again(tmp_path: Path) -> None:
    first, second = Certifier(tmp_path), Certifier(tmp_path)
    assert equal(ask(first), ask(second))
    assert (first.computed, second.computed) == (1, 0)
    assert len(files(tmp_path)) == 1
    ask(first)
    assert first.computed == 1


def test_everything_that_matters_is_in_the_key(tmp_path: Path) -> None:
    certifier = Certifier(tmp_path)
    inputs = CASE.inputs("float64")
    ask(certifier)
    changed = {**inputs, "X": np.nextafter(inputs["X"], np.inf)}
    certifier(PROGRAM, changed, CASE.sizes, "float64")
    certifier(forward_profiles()["causal_attention"].program(), inputs, CASE.sizes, "float64")
    ask(certifier, wanted=("Q",))
    ask(certifier, exact=("Q",))
    assert certifier.computed == 5


def test_a_new_version_of_the_spec_knows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(Certifier(tmp_path))
    monkeypatch.setattr(qkvac.engine.cache, "SPEC_VERSION", "next")
    later = Certifier(tmp_path)
    ask(later)
    assert later.computed == 1


def test_cheap_and_private_values_stay_in_memory(tmp_path: Path) -> None:
    certifier = Certifier(tmp_path)
    for _ in range(2):
        ask(certifier, "float32")
        ask(certifier, wanted=("C",))
    assert certifier.computed == 2
    assert files(tmp_path) == []


def test_values_too_vague_for_a_bound_are_computed_again(tmp_path: Path) -> None:
    calls = []

    def vague(*args: Any, **options: Any) -> dict[str, Enclosure]:
        calls.append(options["bound"])
        return enclosure.certify(*args, **options)

    certifier = Certifier(tmp_path, vague)
    limits = bounds(PROGRAM, CASE.inputs("float64"), CASE.sizes, Arithmetic.for_dtype("float64"))
    ask(certifier)
    ask(certifier, bound=limits)
    assert len(calls) == 1, "Arb at 128 bits is sharp enough for these bounds"
    sharper = {name: limit * 2.0**-80 for name, limit in limits.items()}
    ask(certifier, bound=sharper)
    assert len(calls) == 2
    ask(certifier, bound=sharper)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:40] + b"?" + data[41:], lambda data: b""]
)
def test_a_damaged_entry_is_computed_again_with_one_warning(tmp_path: Path, damage: Any) -> None:
    good = ask(Certifier(tmp_path))
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    certifier = Certifier(tmp_path)
    assert equal(ask(certifier), good)
    assert certifier.computed == 1
    assert len(certifier.warnings) == 1
    assert "damaged" in certifier.warnings[0]
    again = Certifier(tmp_path)
    ask(again)
    assert (again.computed, again.warnings) == (0, [])


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    certifier = Certifier(tmp_path / "file")
    values = ask(certifier)
    ask(certifier, exact=("Q",))
    assert equal(values, ask(Certifier(None)))
    assert len(certifier.warnings) == 1
    assert "going on without it" in certifier.warnings[0]


def test_a_folder_may_vanish_at_any_time(tmp_path: Path) -> None:
    certifier = Certifier(tmp_path)
    ask(certifier)
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    ask(certifier, exact=("Q",))
    assert certifier.warnings == []


def test_processes_may_write_at_the_same_time(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from qkvac.engine.cache import Certifier\n"
        "from qkvac.tests.suite.test_cache import ask\n"
        "made = Certifier(Path(sys.argv[1])); ask(made); assert not made.warnings"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    running = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert len(files(tmp_path)) == 1
    reader = Certifier(tmp_path)
    ask(reader)
    assert (reader.computed, reader.warnings) == (0, [])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qkvac.engine.cache, "MEMORY", 1)
    certifier = Certifier(None)
    for dtype in ("float64", "float32", "float64"):
        ask(certifier, dtype)
    assert certifier.computed == 3


def test_a_run_uses_the_folder_and_shows_its_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKVAC_CACHE", str(tmp_path / "cache"))
    port = write(tmp_path)
    first = run(port, SMALL, dtypes=("float64",), cache=True)
    (path,) = files(tmp_path / "cache")
    path.write_bytes(b"damaged")
    second = run(port, SMALL, dtypes=("float64",), cache=True)
    assert statuses(first) == statuses(second)


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKVAC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/qkvac")
    monkeypatch.setenv("QKVAC_CACHE", "/elsewhere")
    assert default_folder() == Path("/elsewhere")


# --- digests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_zeros_and_nans_have_one_form(dtype: str) -> None:
    kind = numpy_dtype(dtype)
    x = np.array([0.0, np.nan, 1.5], kind)
    y = np.array([-0.0, -np.nan, 1.5], kind)
    assert x.tobytes() != y.tobytes()
    assert same_bits(x, y)
    assert digest(x) == digest(y)
    assert digest(x) == digest(canonical(y)[::1])
    assert not same_bits(x, np.array([0.0, np.nan, 1.25], kind))


def test_digests_mind_dtype_and_shape_but_not_layout() -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert digest(x) == digest(np.asfortranarray(x)) == digest(x.astype(">f8"))
    assert len({digest(x), digest(x.reshape(3, 2)), digest(x.astype("f4"))}) == 3
    assert not same_bits(x, x.astype("f4"))
    assert not same_bits(x, x.T)
