"""The command line: exit statuses, one clear line for bad input, and readable output."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib import resources
from math import prod
from pathlib import Path

import jsonschema
import pytest

import qkvac
from qkvac.cli.main import main
from qkvac.spec.attention import CONVENTIONS
from qkvac.spec.cases.catalogue import cases, profiles_with_cases
from qkvac.spec.registry import forward_profiles
from qkvac.tests.suite.engine_ports import MAIN, SMALL, write


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def qkvac_process(*words: str, **environment: str) -> subprocess.Popen[str]:
    """The command in a process that Ctrl-C ends, also where this one runs in the background."""
    return subprocess.Popen(
        [sys.executable, "-m", "qkvac", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=_heeds_ctrl_c if os.name == "posix" else None,
    )


def _heeds_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


WRONG = "def attention(*arrays): return 2 * plain(*arrays)[-1]"


# --- check and run ---------------------------------------------------------------------------


def test_a_right_port_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = command(capsys, "check", write(tmp_path), "--case", "normal/[36]*")
    assert (status, err) == (0, "")
    assert "CONFORMS: my_port@cpu computes the same attention" in out
    assert "proves nothing about" in " ".join(out.split())
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_wrong_port_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = write(tmp_path, WRONG)
    status, out, err = command(capsys, "check", port, "--case", SMALL, "--dtype", "float32")
    assert (status, err) == (1, "")
    assert "C: failed, bound, around the true value" in " ".join(out.split())
    assert f"again: qkvac check {port} --case attention/{SMALL} --dtype float32" in out
    assert "DEVIATES: my_port@cpu deviates from the spec in C." in out


def test_a_pass_by_coarser_arithmetic_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("check", write(tmp_path), "--case", SMALL, "--dtype", "float32")
    told = "judged by the coarser arithmetic that it declares"
    assert told not in " ".join(command(capsys, *words)[1].split())
    declared = ("--declare", "arithmetic.accumulation=bfloat16")
    status, out, _ = command(capsys, *words, *declared)
    assert status == 0
    assert told in " ".join(out.split())


def test_nothing_decisive_is_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
    QKVAC = {"supports": ["empty"]}
    def attention(X, *W):
        return {"C": X @ W[2]} if len(X) == 0 else plain(X, *W)
    """
    port = write(tmp_path, text)
    status, out, _ = command(capsys, "check", port, "--case", "empty/*")
    assert status == 3
    assert "NOTHING PROVED" in out


def test_a_module_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, name="some_module")
    monkeypatch.chdir(tmp_path)
    status, out, _ = command(capsys, "check", "some_module", "--case", SMALL)
    assert status == 0
    assert "some_module@cpu" in out


def test_what_is_declared_wins_and_is_part_of_the_command_to_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = write(tmp_path, "QKVAC = {'arithmetic': {'softmax': 'fused'}}\n" + WRONG)
    record = tmp_path / "run.jsonl"
    words = ("--declare", 'dtypes=["float32"]', "--declare", "arithmetic.softmax=reciprocal")
    rest = ("--case", SMALL, "--record", str(record))
    status, out, _ = command(capsys, "check", port, *words, *rest)
    assert status == 1
    assert "softmax reciprocal" in " ".join(out.split())
    again = out.partition("again: ")[2].splitlines()[0]
    assert shlex.split(again)[1:] == [
        *("check", port, *words, "--case", f"attention/{SMALL}", "--dtype", "float32")
    ]
    text = (resources.files("qkvac.records") / "record.schema.json").read_text("utf-8")
    schema = json.loads(text)
    for line in record.read_text(encoding="utf-8").splitlines():
        jsonschema.validate(json.loads(line), schema)


def test_run_takes_backends(capsys: pytest.CaptureFixture[str]) -> None:
    case = f"attention/{SMALL}"
    words = ("run", "--backend", "numpy/eager", "--case", case, "--dtype", "float16")
    status, out, _ = command(capsys, *words)
    assert status == 0
    assert "numpy/eager@cpu computes the same attention as the spec in float16." in out


def test_a_port_that_returns_little_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = write(tmp_path, "def attention(*arrays): return plain(*arrays)[-1]")
    _, out, _ = command(capsys, "check", port, "--case", MAIN, "--dtype", "float32")
    text = " ".join(out.split())
    assert "judged as declared: float32 accumulates in float32, softmax undeclared" in text
    assert "returning Q, K, V and A makes the test sharper" in text


def test_json_holds_totals_and_every_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("check", write(tmp_path), "--case", SMALL, "--format", "json")
    status, out, _ = command(capsys, *words)
    found = json.loads(out)
    assert (status, found["exit_status"]) == (0, 0)
    assert len(found["results"]) == sum(found["counts"].values())
    assert {"cell", "status", "digest"} <= found["results"][0].keys()


def test_list_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = write(tmp_path, "def attention(*arrays): raise SystemExit('never')")
    words = ("check", port, "--case", SMALL, "--dtype", "float32", "--list")
    status, out, _ = command(capsys, *words)
    assert status == 0
    assert out.splitlines()[0] == f"my_port@cpu-float32-attention/{SMALL}-Q"
    _, again, _ = command(capsys, *words, "--format", "json")
    assert json.loads(again) == out.splitlines()


def test_the_first_failure_can_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("check", write(tmp_path, WRONG), "--case", "normal/*", "-x", "-n", "1")
    status, out, _ = command(capsys, *words)
    assert status == 1
    assert "1 failed" in out
    assert "not run" in out


def test_seeds_add_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("check", write(tmp_path), "--case", f"{SMALL}*", "--seeds", "2", "--list")
    _, out, _ = command(capsys, *words)
    drawn = {line.partition("-")[2] for line in out.splitlines() if line.endswith("-Q")}
    assert drawn == {
        f"{dtype}-attention/{SMALL}{draw}-Q"
        for dtype in ("float64", "float32")
        for draw in ("", "/s1", "/s2")
    }


def test_a_record_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    words = ("check", write(tmp_path), "--case", SMALL, "--record", str(path))
    assert command(capsys, *words)[0] == 0
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["kind"] == "footer"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_record_on_a_full_disk_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("check", write(tmp_path), "--case", SMALL, "--record", "/dev/full")
    status, out, err = command(capsys, *words)
    assert (status, out) == (2, "")
    assert "No space left" in err


def test_a_damaged_cache_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QKVAC_CACHE", str(tmp_path / "cache"))
    words = ("check", write(tmp_path), "--case", SMALL)
    command(capsys, *words)
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    status, out, err = command(capsys, *words)
    assert (status, err) == (0, "")
    assert "warning: a damaged cache entry is computed again" in " ".join(out.split())


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--backend", "trch"), "did you mean torch?"),
        (("run", "--dtype", "float23"), "did you mean float32?"),
        (("run", "--case", "norml/6x3x2"), "`qkvac cases` lists all"),
        (("run", "--case", "normal"), "did you mean 'normal/*'?"),
        (("run", "--case", "attention/lookp/*"), "did you mean 'lookup/*'?"),
        (("run", "--profile", "mha"), "did you mean multi_head_attention?"),
        (("run", "--profile", "sdpa"), "did you mean scaled_dot_product_attention?"),
        (("show", SMALL, "--declare", "arithmetic.softmx=fused"), "did you mean 'softmax'?"),
        (("run", "--profile", "attenton"), "did you mean attention?"),
        (("run", "--device", "cpuu", "-b", "numpy"), "did you mean cpu?"),
        (("run", "--tier", "huge"), "'full'"),
        (("run", "--memory", "much"), "write 4G or 512M"),
        (("run", "--timeout", "0"), "more than 0"),
        (("run", "-n", "-1"), "at least 0"),
        (("run", "--threads", "0"), "at least 1"),
        (("run", "--seeds", "-1"), "0<=x<=1000"),
        (("run", "--dtpye", "float32"), "--dtype"),
        (("run", "--known-deviations", "nowhere.toml"), "nowhere.toml"),
        (("check",), "PORT"),
        (("check", "nowhere.py"), "no such file"),
        (("check", "no.such.module"), "cannot be imported"),
        (("check", "json:no"), "json has no 'no'"),
        (("check", "nowhere.onnx"), "no such file"),
        (("check", "json", "--declare", "color=red"), "offers no function"),
        (("spec", "atention"), "did you mean attention?"),
        (("show", "normal/6x3x3"), "did you mean attention/normal/6x3x2?"),
        (("show", SMALL, "--dtype", "float8"), "unknown dtype"),
        (("sho",), "sho"),
    ],
)
def test_bad_usage_is_one_line_and_2(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = command(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("qkvac: ")
    assert len(err.splitlines()) == 1


# --- showing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["attention", "causal_attention", "embedding"])
def test_spec_prints_equations(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "latex", "json"):
        status, out, _ = command(capsys, "spec", profile, "--format", form)
        assert status == 0
        assert out.strip()
    json.loads(out)


def test_spec_is_the_profile_attention(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "spec")
    for line in ("A[n, n] = softmax(Ω / sqrt(c), axis=1)", "5 matrix products and 1 transposition"):
        assert line in out


def test_backends_says_what_runs_here(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "backends")
    assert "numpy/eager" in out
    _, again, _ = command(capsys, "backends", "--format", "json")
    names = [row["name"] for row in json.loads(again)]
    assert names[:4] == ["numpy", "torch", "jax", "tensorflow"]
    assert all(name in out for name in names)


def test_cases_gives_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "cases", "--case", "normal/[36]*")
    assert f"attention/{MAIN}\n    " in out
    _, again, _ = command(capsys, "cases", "--case", f"attention/{MAIN}", "--format", "json")
    (row,) = json.loads(again)
    assert row["sizes"] == {"n": 33, "d": 20, "c": 7}
    assert row["why"]


def test_show_prints_a_case(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "show", "worked-example/6x3x2")
    for part in ("X [6, 3]", "Ω[n, n] = Q @ K.T", "certified, ", "bound of its error"):
        assert part in out
    _, out, _ = command(capsys, "show", "attention/ties/16x16x16", "--dtype", "float16")
    assert "every bit is required" in out
    _, out, _ = command(capsys, "show", SMALL, "--format", "json")
    shown = json.loads(out)
    assert set(shown["quantities"]["C"]) >= {"certified", "bound", "proved_exact"}
    assert len(shown["inputs"]["X"]) == 6


# --- the process -----------------------------------------------------------------------------


def test_show_has_the_bounds_of_what_is_declared(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = {}
    for words in ((), ("--declare", "arithmetic.accumulation=float16")):
        shown = ("show", "normal/6x3x2", "--dtype", "float32", *words)
        _, out, _ = command(capsys, *shown)
        accumulated = "float16" if words else "float32"
        assert f"bounds of what is declared: float32 accumulates in {accumulated}" in out
        _, out, _ = command(capsys, *shown, "--format", "json")
        bounds[words] = json.loads(out)["quantities"]["Q"]["bound"][0][0]
    assert bounds["--declare", "arithmetic.accumulation=float16"] > 1000 * bounds[()]


def test_help_is_not_cut_and_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ((), ("report",)):
        _, out, _ = command(capsys, *group, "--help")
        assert "..." not in out.partition("Commands:")[2]
    for name in ("run", "check", "show"):
        _, out, _ = command(capsys, name, "--help")
        assert f"\n  qkvac {name} " in out


def test_spec_shows_every_variant_and_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, "spec", "scaled_dot_product_attention")
    assert "scaled_dot_product_attention(Q, K, V, *, causal, mask, scale)" in out
    for variant in forward_profiles()["scaled_dot_product_attention"].texts:
        assert variant == "plain" or f"with {variant.replace('-', ', ')}:" in out
    assert "where=finite(mask) & causal(L, S))" in out
    for convention in CONVENTIONS.values():
        assert (convention.about in out) == (convention.name != "weight_layout")
    _, out, _ = command(capsys, "spec", "embedding")
    assert "conventions" not in out


def test_cases_of_any_profile_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _, listed, _ = command(capsys, "cases", "--profile", "multi_head_attention")
    assert {line.partition("/")[0] for line in listed.splitlines()[::2]} == {"multi_head_attention"}
    for name in profiles_with_cases():
        some = [c for c in cases(name) if 0 < prod(c.sizes.values()) * prod(c.batch) < 50_000]
        for case in {c.variant: c for c in some}.values():
            _, out, _ = command(capsys, "show", case.id)
            assert all(f"\n{array} [" in out for array in case.inputs(case.dtypes[0]))
            assert all(f"{key} = {value}" in out for key, value in case.attributes.items())
            assert not case.batch or "batch of" in out
    case = next(c for c in cases("scaled_dot_product_attention") if c.masked)
    _, out, _ = command(capsys, "show", case.id.partition("/")[2], "--format", "json")
    assert json.loads(out)["masked"] is True


def test_help_starts_at_once_and_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom qkvac.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "finally:\n    print(*({'numpy', 'flint', 'rich', 'jsonschema'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == ""
    assert "check" in done.stdout


def test_python_m_works() -> None:
    process = qkvac_process("--version")
    out, _ = process.communicate()
    assert (process.returncode, out) == (0, f"qkvac, version {qkvac.__version__}\n")


def test_ctrl_c_ends_with_130_and_what_was_found(tmp_path: Path) -> None:
    port = write(
        tmp_path,
        """
        def attention(X, *W):
            if len(X) == 33:
                open(os.environ["QKVAC_TEST_SIGNAL"], "w").close()
                time.sleep(60)
            return plain(X, *W)
        """,
    )
    signalled, record = tmp_path / "now", tmp_path / "run.jsonl"
    process = qkvac_process(
        *("check", port, "--profile", "attention", "--dtype", "float32"),
        *("--case", SMALL, "--case", MAIN, "--record", str(record)),
        QKVAC_TEST_SIGNAL=str(signalled),
    )
    started = time.monotonic()
    # The small case is judged, and written down, while the port sleeps over the other one.
    judged = f'{SMALL}","quantity":"C"'
    while not (signalled.exists() and judged in record.read_text(encoding="utf-8")):
        assert time.monotonic() - started < 60
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert "conforming" in out or "faithful" in out


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_long_run_shows_on_a_terminal_how_far_it_is(tmp_path: Path) -> None:
    import pty

    port = write(tmp_path, "def attention(*arrays): time.sleep(2); return plain(*arrays)")
    terminal, stderr = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "qkvac", "check", port, "--case", SMALL, "--dtype", "float32"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(stderr)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert done.returncode == 0
    assert re.search(r"\d+/\d+", shown), shown


def test_an_ended_pipe_is_no_error(tmp_path: Path) -> None:
    process = qkvac_process("cases")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    process.wait()


def test_python_has_the_same(tmp_path: Path) -> None:
    port = write(tmp_path)
    report = qkvac.check(port, cases=[SMALL], dtypes=["float32"])
    assert report.passed
    assert "CONFORMS" in str(report)
    qkvac.assert_conforms(port, cases=[SMALL], dtypes=["float32"])
    with pytest.raises(AssertionError, match="DEVIATES"):
        qkvac.assert_conforms(write(tmp_path, WRONG, "wrong"), cases=[SMALL], dtypes=["float32"])
    with pytest.raises(qkvac.UsageError, match="no such file"):
        qkvac.check(tmp_path / "nowhere.py")
