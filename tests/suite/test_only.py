"""What a port takes alone: cases outside are not put to it, and are counted with the reason."""

from __future__ import annotations

import stat
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from qkvac.api import check
from qkvac.cells import Result, Status
from qkvac.cli.main import main
from qkvac.records.report import Report
from qkvac.spec.cases.catalogue import cases
from qkvac.spec.registry import known_profiles
from qkvac.targets.declaration import DeclarationError, parse
from qkvac.targets.only import is_causal, is_choice, rank
from qkvac.tests.suite.profile_ports import write

SDPA: Final = "scaled_dot_product_attention"
LAYERS: Final = "multi_head_attention"

KERNELS: Final = {
    "only = { causal = true }": (SDPA, "not causal", "causal only"),
    "only = { causal = false }": (SDPA, "causal", "never causal"),
    'only = { shapes = ["L = S"] }': (SDPA, "Q.shape[-2] != K.shape[-2]", "square only (L = S)"),
    "only = { rank = [4] }": (SDPA, "Q.ndim != 4", "rank 4 only"),
    "only = { rank = [2, 3] }": (LAYERS, "X.ndim not in (2, 3)", "rank 2 and 3 only"),
    'only = { shapes = ["d = c"] }': (LAYERS, "Wq.shape[0] != Wq.shape[1]", "square only (d = c)"),
}
"""What is declared, of which function, what its kernel does not take, and the reason in words."""

SIGNATURES: Final = {
    SDPA: "Q, K, V, *, causal=False, mask=None, scale=None",
    LAYERS: "X, Wq, Wk, Wv, Wo, *, heads, causal=False",
}


def narrow(folder: Path, declared: str) -> Path:
    """A port that raises for all but what it declares to take alone."""
    profile, refused, _ = KERNELS[declared]
    signature = SIGNATURES[profile]
    names = [part.partition("=")[0].strip() for part in signature.split(",") if "*" not in part]
    keywords = signature.partition("*, ")[2]
    given = [name if name not in keywords else f"{name}={name}" for name in names]
    return Path(
        write(
            folder,
            f"""
    inner = {profile}
    def {profile}({signature}):
        if {refused}:
            raise ValueError("no kernel")
        return inner({", ".join(given)})
    """,
        )
    )


def checked(port: Path, declared: str, profile: str) -> Report:
    declare = (declared,) if declared else ()
    return check(
        port, tier="quick", profiles=[profile], dtypes=["float32"], declare=declare, workers=1
    )


def reasons(results: Sequence[Result]) -> set[str]:
    return {r.reason or "" for r in results if r.status == Status.UNSUPPORTED and r.last}


@pytest.mark.parametrize("declared", KERNELS)
def test_a_kernel_that_takes_less_passes_if_it_says_so(tmp_path: Path, declared: str) -> None:
    profile, _, words = KERNELS[declared]
    port = narrow(tmp_path, declared)
    report = checked(port, declared, profile)
    assert report.exit_status == 0, str(report)
    assert reasons(report.results) == {words}
    every = {r.cell.case for r in report.results}
    outside = {r.cell.case for r in report.results if r.reason == words}
    assert 0 < len(outside) < len(every)
    asked = len(every) - len(outside)
    assert f"{words}: {asked} of {len(every)} cases" in str(report)
    assert "unsupported (" not in str(report)


@pytest.mark.parametrize("declared", [*KERNELS][:3])
def test_undeclared_it_is_an_error(tmp_path: Path, declared: str) -> None:
    report = checked(narrow(tmp_path, declared), "", KERNELS[declared][0])
    assert report.exit_status == 1
    assert any("no kernel" in (r.reason or "") for r in report.failures)


def test_what_is_taken_alone_is_still_judged(tmp_path: Path) -> None:
    port = write(tmp_path, "triangle = lambda L, S: np.tri(L, S, -1, dtype=bool)")
    report = checked(Path(port), "only.causal=true", SDPA)
    assert report.exit_status == 1
    assert checked(Path(port), "only.causal=false", SDPA).exit_status == 0


def test_where_nothing_is_left_the_verdict_says_what_would_prove_more(tmp_path: Path) -> None:
    report = checked(Path(write(tmp_path)), "only.rank=[7]", SDPA)
    assert report.exit_status == 3
    assert report.sentence.startswith("NOTHING PROVED")
    assert "What would prove more: taking more than `only` says" in report.sentence
    assert "rank 7 only" in report.sentence


def test_what_is_not_supported_is_named_as_well(tmp_path: Path) -> None:
    port = tmp_path / "kernel.py"
    port.write_text(Path(write(tmp_path)).read_text().replace('"supports": "all", ', ""))
    report = check(
        port, profiles=[LAYERS], dtypes=["float32"], declare=["only.rank=[3]"], workers=1
    )
    assert report.exit_status == 3
    assert 'or "batches" in `supports`' in report.sentence


def test_causality_is_a_choice_only_where_there_are_both_texts() -> None:
    assert is_choice(SDPA)
    assert is_choice(f"{SDPA}_gradients")
    assert not is_choice("attention")
    assert not is_choice("causal_attention")
    always = parse({"only": {"causal": False}}).only
    assert not any(always.excludes(case) for case in cases("causal_attention"))
    flagged = [case for case in cases(SDPA) if case.attributes.get("causal")]
    assert all(is_causal(case.program) for case in flagged)
    assert all(always.excludes(case) == "never causal" for case in flagged)


@pytest.mark.parametrize("profile", known_profiles())
def test_the_rank_is_that_of_the_first_input(profile: str) -> None:
    for case in cases(profile)[:40]:
        dtype = case.dtypes[0]
        assert case.inputs(dtype)[case.declared.takes[0]].ndim == rank(case)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"causl": True}, r"'only\.causl' is not a key; did you mean 'causal'"),
        ({"causal": "yes"}, "only.causal: 'yes' is not of type 'boolean'"),
        ({"shapes": ["square"]}, "write axes that are equal, like 'd = c'"),
        ({"shapes": ["l = S"]}, "'l' is no axis of a profile; did you mean 'L'"),
        ({"shapes": "L = S"}, "is not of type 'array'"),
        ({"rank": [0]}, "0 is less than the minimum"),
        ({"rank": ["3"]}, "'3' is not of type 'integer'"),
    ],
)
def test_a_wrong_word_is_one_line(
    table: dict[str, object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(DeclarationError, match=words) as caught:
        parse({"only": table})
    assert len(str(caught.value).splitlines()) == 1
    path = tmp_path / "port.py"
    path.write_text(f"QKVAC = {{'only': {table!r}}}\ndef attention(X, *W): return X\n")
    with pytest.raises(SystemExit) as ended:
        main(["check", str(path)])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert "Traceback" not in told


PROGRAM: Final = """
    import sys
    from pathlib import Path
    import numpy as np
    from safetensors.numpy import load_file, save_file
    inputs, outputs = map(Path, sys.argv[1:])
    for path in inputs.glob("*.safetensors"):
        given = load_file(path)
        X, Wq, Wk, Wv = (given[name] for name in ("X", "Wq", "Wk", "Wv"))
        if X.shape[0] > 20:
            REFUSAL
            continue
        Q, K, V = X @ Wq, X @ Wk, X @ Wv
        S = Q @ K.T / np.sqrt(Q.shape[1], dtype=X.dtype)
        E = np.exp(S - S.max(axis=1, keepdims=True))
        A = E / E.sum(axis=1, keepdims=True)
        save_file({"A": A, "C": A @ V}, outputs / path.name)
    """


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ('(outputs / f"{path.stem}.unsupported").write_text("20 tokens\\n")', "20 tokens"),
        ('(outputs / f"{path.stem}.unsupported").touch()', "declined"),
        ('(outputs / f"{path.stem}.unsupported").write_text("\\x1b[2J" * 99)', r"\\u001b[2J"),
        ("pass", ""),
    ],
)
def test_a_program_declines_a_case_with_its_reason(
    tmp_path: Path, refusal: str, reason: str
) -> None:
    path = tmp_path / "program"
    text = textwrap.dedent(PROGRAM).replace("REFUSAL", refusal)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    report = check(
        [str(path)],
        dtypes=["float32"],
        cases=["normal/6x3x2", "normal/33x20x7"],
        workers=1,
    )
    found = {r.cell.case: r for r in report.results if r.last}
    assert found["attention/normal/6x3x2"].status == Status.PASSED
    long = found["attention/normal/33x20x7"]
    if not reason:
        assert (long.status, report.exit_status) == (Status.MISSING, 1)
        return
    assert long.status == Status.UNSUPPORTED
    assert (long.reason or "").startswith(reason.replace("\\\\", "\\"))
    assert len(long.reason or "") < 100
    assert report.exit_status == 0
