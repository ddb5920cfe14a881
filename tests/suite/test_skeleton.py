"""Skeletons: what `qkvac new` writes can be filled in, and says so until it is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qkvac.api import check
from qkvac.cli.main import main
from qkvac.spec.cases.catalogue import profiles_with_cases
from qkvac.spec.registry import choose, known_profiles
from qkvac.targets.declaration import load, parse
from qkvac.targets.ports import load as load_port
from qkvac.tests.suite.engine_ports import MAIN, SMALL, run, statuses


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def uncommented(text: str, indent: str = "") -> str:
    """The text with its suggestions taken: comments that are code, not sentences."""
    code = re.compile(rf'^{indent}# ( *)("\w+":|}}|\[\w|\w+ =)', re.MULTILINE)
    return code.sub(rf"{indent}\1\2", text)


def test_a_port_fails_until_it_is_filled_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / 'my "quoted" port.py'
    status, out, err = command(capsys, "new", str(path))
    assert (status, err) == (0, "")
    assert f"fill in `attention`, then: qkvac check {shlex.quote(str(path))}" in out
    words = ("check", str(path), "--case", SMALL, "--dtype", "float32")
    status, out, _ = command(capsys, *words)
    assert status == 1
    assert "RuntimeError: attention is still to be written" in out


def filled_in(path: Path) -> None:
    """Takes what the skeleton suggests, functions and declaration."""
    text = path.read_text(encoding="utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("    raise"))
    body = body.replace("\n    #     ", "\n    ")
    path.write_text(uncommented(body, "    "), encoding="utf-8")


def test_a_port_passes_once_it_is_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "my_port.py"
    with pytest.raises(SystemExit):
        main(["new", str(path)])
    filled_in(path)
    asked = (f"attention/{name}" for name in (MAIN, "layout*/*", "empty/*"))
    found = run(str(path), *asked, dtypes=("float32", "float16"))
    assert {result.status for result in found} <= {"passed", "not reported", "indecisive"}
    assert statuses(found, MAIN)["C"] == "passed"


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(name, marks=pytest.mark.long if base and base != "attention" else ())
        for name in profiles_with_cases()
        for base in [known_profiles()[name].base]
    ],
)
def test_every_function_passes_once_it_is_filled_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], profile: str
) -> None:
    path = tmp_path / "my_port.py"
    status, out, _ = command(capsys, "new", str(path), "--profile", profile)
    assert status == 0
    assert f"fill in `{profile}`" in out
    assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 100
    status, out, _ = command(capsys, "check", str(path), "--dtype", "float32", "--tier", "quick")
    assert status == 1
    assert f"RuntimeError: {profile} is still to be written" in out
    filled_in(path)
    report = check(path, tier="quick", dtypes=["float32"], workers=1)
    assert report.exit_status == 0, str(report)
    assert not report.counts["unsupported"] - len(profiles_with_cases()) + 1


VARIANTS = Path(__file__).parents[2] / "docs" / "examples" / "variants"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(folder.name, marks=() if folder.name == "latent" else pytest.mark.long)
        for folder in sorted(VARIANTS.glob("*"))
    ],
)
def test_functions_of_ones_own_equations_pass_once_they_are_filled_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    spec = VARIANTS / name / "equations.py"
    (profile,) = choose([spec]).sources[0].profiles
    try:
        path = tmp_path / "my_port.py"
        words = ("--profile", profile.name, "--profile", profile.gradients.name)
        status, _, err = command(capsys, "new", str(path), "--spec", str(spec), *words)
        assert (status, err) == (0, "")
        assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 100
        filled_in(path)
        report = check(path, tier="quick", dtypes=["float32"], workers=1, spec=[spec])
        assert report.exit_status == 0, str(report)
        judged = {r.cell.quantity for r in report.results if r.ok and r.decisive}
        assert judged >= {profile.last, *profile.gradients.returns} - {"dlam"}
    finally:
        choose()


def test_a_skeleton_may_have_several_functions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my_port.py"
    words = [word for name in known_profiles() for word in ("--profile", name)]
    assert command(capsys, "new", str(path), *words)[0] == 0
    assert set(load_port(str(path)).functions) == set(known_profiles())
    status, _, err = command(capsys, "new", str(tmp_path / "x.py"), "--profile", "atention")
    assert status == 2
    assert "did you mean attention?" in err


def test_a_declaration_is_right_as_it_is_and_with_all_it_suggests(tmp_path: Path) -> None:
    path = tmp_path / "port.toml"
    with pytest.raises(SystemExit):
        main(["new", str(path)])
    assert load(file=path) == {"name": "my port"}
    path.write_text(uncommented(path.read_text(encoding="utf-8")), encoding="utf-8")
    declared = parse(load(file=path))
    assert declared.supports == {"empty"}
    assert len(declared.dtypes) == 4
    assert declared.arithmetic("float16", "default", "cpu") == {
        "softmax": "shifted, divided",
        "flushes": False,
        "accumulation": "float32",
    }


@pytest.mark.parametrize("name", ["my_port.py", "port.toml"])
def test_nothing_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = tmp_path / name
    path.write_text("mine", encoding="utf-8")
    status, out, err = command(capsys, "new", str(path))
    assert (status, out) == (2, "")
    assert err == f"qkvac: {path} exists, and is left as it is\n"
    assert path.read_text(encoding="utf-8") == "mine"


def test_other_files_are_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = command(capsys, "new", str(tmp_path / "port.c"))
    assert status == 2
    assert "starts from `qkvac export`" in err
    status, _, err = command(capsys, "new", str(tmp_path / "nowhere" / "port.py"))
    assert status == 2
    assert "cannot be written: No such file" in err
