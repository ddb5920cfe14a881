"""Profiles of somebody's own: from one file to a verdict, in every command and every process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qkvac
from qkvac.cells import Result, Status
from qkvac.engine.engine import Engine
from qkvac.spec import attention, registry, validation
from qkvac.spec.registry import Source, choose, declared_in, known_profiles
from qkvac.subjects.selection import Options, Selection
from qkvac.targets.declaration import parse
from qkvac.targets.equations import recall, use
from qkvac.targets.ports import known_functions
from qkvac.usage import UsageError

VARIANTS = Path(__file__).parents[2] / "docs" / "examples" / "variants"
CROSS = VARIANTS / "cross" / "equations.py"
DIFFERENTIAL = VARIANTS / "differential" / "equations.py"
HEAD = "from qkvac.spec import Flag, Mask, Parameter, Profile, Size\n"


@pytest.fixture(autouse=True)
def own_profiles_alone() -> Iterator[None]:
    yield
    choose()


def command(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qkvac", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )


def file(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(HEAD + text, encoding="utf-8")
    return path


def profile(text: str, rest: str, name: str = "mine") -> str:
    return f'P = Profile("{name}", "a trial", """\n{text}\n""", {rest})\n'


DOUBLED = profile("X[n, d]\nC[n, d] = X + X", 'takes="X", returns="C"')


# --- the suite's own -----------------------------------------------------------------------------


def test_our_own_profiles_are_declared_in_the_same_form_and_make_sense() -> None:
    validation.check(Source("qkvac.spec.attention", "", declared_in(attention)))


def test_the_spec_module_needs_numpy_and_ml_dtypes_alone() -> None:
    code = (
        "import sys, numpy, ml_dtypes; before = set(sys.modules); import qkvac.spec.attention;"
        "print(sorted({m.partition('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['qkvac']"


# --- a file ---------------------------------------------------------------------------------------


def test_a_file_that_was_edited_is_read_again(tmp_path: Path) -> None:
    path = file(tmp_path, DOUBLED)
    use([path])
    first = registry.chosen()
    use([path])
    assert registry.chosen() is first
    file(tmp_path, DOUBLED.replace("X + X", "X - X"))
    use([path])
    assert known_profiles()["mine"].program().equations[0].text.endswith("X - X")


def test_a_file_adds_a_profile_and_its_gradients(tmp_path: Path) -> None:
    use([file(tmp_path, DOUBLED)])
    assert list(known_profiles())[-1] == "mine_gradients"
    assert known_functions()["mine_gradients"].positional == ("X", "dC")
    assert registry.usual_profile() == "mine"
    use()
    assert "mine" not in known_profiles()


def test_what_is_remembered_of_a_name_goes_with_the_file(tmp_path: Path) -> None:
    other = profile("X[n, d]\nC[n, d] = X - X", 'takes="X", returns="C"')
    use([file(tmp_path, DOUBLED)])
    first = known_functions()["mine"], known_profiles()["mine"]
    use([file(tmp_path, other, "other.py")])
    assert known_functions()["mine"] is not first[0]
    assert known_profiles()["mine"].texts != first[1].texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("P = Profile(", "line 2: '(' was never closed"),
        ("1 / 0", "line 2: ZeroDivisionError: division by zero"),
        ("import nowhere_at_all", "line 2: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit(3)", "line 2: SystemExit: 3"),
        ("x = 1", "declares no profile"),
        ('Profile("p", "", "X[n]", take="X")', "line 2: TypeError"),
        (profile("X[n]\nC[n] = X", 'takes="X", returns="C"', "attention"), "is taken by qkvac"),
        (DOUBLED + DOUBLED.replace("P =", "Q ="), "the name 'mine' is taken by"),
        (profile("X[n]\nC[n] = X", 'takes="X", returns="C"', "a_gradients"), "is no name"),
        (
            profile("X[n, d]\nC[n, d] = cumsum(X)", 'takes="X", returns="C"'),
            "line 4: mine: unknown function 'cumsum'",
        ),
        (
            profile("X[n, d]\nW[d, d]\nC[n, d] = X @ W", 'takes="X", returns="C"'),
            "the input W of the text is no argument",
        ),
        (
            profile("X[n, d]\nC[n, d] = X", 'takes="X, W", returns="C"'),
            "the function takes W, which is no input",
        ),
        (
            profile("X[n, d]\nW[d, d]\nC[n, d] = X", 'takes="X, W", returns="C"'),
            "no equation uses the input W",
        ),
        (profile("X[n, d]\nC[n, d] = X", 'takes="X", returns="A, C"'), "it returns A, which no"),
        (
            profile("X[n, d]\nC[n, d] = X", 'takes="X", returns="C", reports="B"'),
            "it may report B, which no equation defines",
        ),
        (
            profile("X[n, d]\nW[c, d]\nC[n, c] = X @ W", 'takes="X, W", returns="C"'),
            "line 5: mine: C[n, c] = X @ W: [n, d] @ [c, d]",
        ),
        (
            profile("X[n, d]\ns\nC[n, d] = X * s", 'takes="X", returns="C"'),
            "no keyword gives the parameter s",
        ),
        (
            profile("X[n, d]\nC[h, n, d] = split(X, h)", 'takes="X", returns="C"'),
            "nothing says how large h is",
        ),
        (
            profile("X[n, d]\nC[n, d] = X", 'takes="X", returns="C", shared="W"'),
            "W is shared, but no input",
        ),
        (
            profile("X[n, d]\nC[n, d] = X", 'takes="X", returns="C", keywords={"causal": Flag()}'),
            "causal is a flag, but there is no text for causal",
        ),
        (
            "def text(cause): return 'X[n]\\nC[n] = X'\n"
            'P = Profile("mine", "", text, takes="X", returns="C")',
            "the text asks for cause, which is no flag",
        ),
        (
            "def text(): raise KeyError('k')\n"
            'P = Profile("mine", "", text, takes="X", returns="C")',
            "its text cannot be made: KeyError",
        ),
        (
            'def text(): return text()\nP = Profile("mine", "", text, takes="X", returns="C")',
            "its text cannot be made: RecursionError",
        ),
        (
            "def text(causal): return None if causal else 'X[n]\\nC[n] = X'\n"
            'P = Profile("mine", "", text, takes="X", returns="C", keywords={"causal": Flag()})',
            "its text is None where it is causal, and no string",
        ),
        (
            "def text(causal): return 'X[n]\\nC[n] = X'\n"
            'P = Profile("mine", "", text, takes="X", returns="C", keywords={"causal": Flag()})',
            "causal chooses nothing: the text is the same with causal and without",
        ),
        (profile("X[n]\n" * 300 + "C[n] = X", 'takes="X", returns="C"'), "its text has 302 lines"),
        (profile("X[n, d]\nC[n, d] = X", 'takes="X, X", returns="C"'), "it takes X twice"),
        (
            profile("X[n, d]\nC[n, d] = X", 'takes="X", returns="C", keywords={"X": Flag()}'),
            "it takes X twice",
        ),
        (profile("X[n, d]\nC[n, d] = X", 'takes="X", returns="C, C"'), "it returns C twice"),
        (profile("X[n]\nC[n] = X", 'takes="X", returns="C"', "class"), "is no name"),
        (DOUBLED.replace("a trial", "a \\u202e trial"), "in one line that can be read"),
        (profile("X[n]\nC[n] = X", 'takes="X", returns="C"', "\ufb01x"), "is no name"),
        (
            profile("X[n, d]\nC[n, d] = X", 'takes="X", returns="C", keywords={"heads": 3}'),
            "the keyword heads is 3, and no Size",
        ),
        *(
            (
                profile(
                    "X[n, d]\ns\nC[n, d] = X * s",
                    f'takes="X", returns="C", keywords={{"s": Parameter("s", values=({value},))}}',
                ),
                "the keyword s cannot try",
            )
            for value in ("float('nan')", "10**400", "'2'", "None", "1j")
        ),
        (
            profile("X[n, d]\nC[n, d] = X / 0", 'takes="X", returns="C"'),
            "line 4: mine: division by a scalar that is 0",
        ),
        (
            profile("X[n, d]\nC[n, d] = X / (d - 4)", 'takes="X", returns="C"'),
            "line 4: mine: division by a scalar that is 0 (where d = 4)",
        ),
        (
            profile("X[n, d]\nC[n, d] = X * sqrt(d - 9)", 'takes="X", returns="C"'),
            "line 4: mine: square root of the negative scalar -8 (where d = 1)",
        ),
        (
            profile("X[n, d]\nC[n, d] = X / (1 + sqrt(d))", 'takes="X", returns="C"'),
            "line 4: mine: a sum or a root of an irrational scalar is outside the grammar",
        ),
        (
            profile(
                "X[n, d]\nC[n, d] = X + X",
                'takes="X", returns="C", alternatives=("X[n, d]\\nC[n, d] = X @ X",)',
            ),
            "mine: C[n, d] = X @ X: [n, d] @ [n, d]: the inner axis is d left, n right",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_one_clear_error(
    tmp_path: Path, text: str, message: str
) -> None:
    path = file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        use([path])
    first = str(caught.value).partition("\n")[0]
    assert first.startswith(str(path))
    assert message in first


def test_bytes_that_are_no_text_have_no_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(b"\0\1\2")
    with pytest.raises(UsageError) as caught:
        use([path])
    assert "None" not in str(caught.value)


def test_what_a_file_prints_is_not_the_answer(tmp_path: Path) -> None:
    text = """print("loaded")
def text(causal):
    print("made")
    return "X[n, d]\\nC[n, d] = softmax(X @ X.T, axis=1{}) @ X".format(
        ", where=causal(n, n)" if causal else "")
P = Profile("mine", "", text, takes="X", returns="C", keywords={"causal": Flag()})
"""
    done = command("spec", "--spec", file(tmp_path, text), "--format", "json")
    assert json.loads(done.stdout)["profile"] == "mine"
    assert "loaded" in done.stderr
    assert "made" in done.stderr


def test_a_softmax_over_queries_has_gradients(tmp_path: Path) -> None:
    text = "X[n, d]\nA[n, n] = softmax(X @ X.T, axis=0)\nC[n, d] = A @ X"
    use([file(tmp_path, profile(text, 'takes="X", returns="A, C"'))])
    equations = known_profiles()["mine"].gradients.program().equations
    assert "dS[n, n] = A * (dA - sum(A * dA, axis=0))" in [one.text for one in equations]


def test_a_mark_shows_the_place(tmp_path: Path) -> None:
    path = file(tmp_path, profile("X[n, d]\nC[n, d] = X + cumsum(X)", 'takes="X", returns="C"'))
    done = command("spec", "--spec", path)
    assert done.returncode == 2
    assert done.stdout == ""
    _, line, mark = done.stderr.rstrip().split("\n")
    assert line.index("cumsum") == mark.index("^")


@pytest.mark.parametrize("name", ["nowhere.py", "mine.txt"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=name):
        use([tmp_path / name])


# --- the commands --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cross", "differential", "latent", "sigmoid", "temperature"])
def test_the_variants_are_judged_from_their_one_file(name: str, tmp_path: Path) -> None:
    """A right port passes; each of five wrong ones fails."""
    folder = VARIANTS / name
    assert len((folder / "equations.py").read_text(encoding="utf-8").splitlines()) <= 60
    rights = [path.name for path in folder.glob("*.py") if path.stem in ("port", "expanded")]
    for right in rights:
        done = command("check", right, "--spec", "equations.py", cwd=folder)
        assert done.returncode == 0, done.stdout[-3000:]
    text = (folder / "wrong.py").read_text(encoding="utf-8")
    names = [line[6:-1] for line in text.splitlines() if line.startswith("class ")]
    assert len(names) == 5
    use([folder / "equations.py"])
    for wrong in names:
        statuses = {result.status for result in until_one_fails(f"{folder}/wrong.py:{wrong}")}
        assert Status.FAILED in statuses, wrong
        assert Status.ERROR not in statuses, wrong


def until_one_fails(port: str) -> Iterator[Result]:
    """Results of a port as they are judged; they are not diagnosed."""
    selection = Selection(port=port, dtypes=("float32",))
    with Engine(selection, Options(workers=1)) as engine:
        for cell in engine.cells:
            result = engine.result(cell)
            yield result
            if result.status == Status.FAILED:
                return


def test_every_command_takes_a_file(tmp_path: Path) -> None:
    case = "weighted_cross_attention/normal"
    assert "K[m, c] = Z @ Wk" in command("spec", "--spec", CROSS).stdout
    listed = command("cases", "--spec", CROSS, "--profile", "weighted_cross_attention").stdout
    first = listed.split("\n")[0]
    assert first.startswith(case)
    assert "Z [" in command("show", first, "--spec", CROSS).stdout
    assert command("faults", "--spec", CROSS).returncode == 0
    assert command("backends", "--spec", CROSS).returncode == 0
    words = ("--spec", CROSS, "--profile", "weighted_cross_attention", "--dtype", "float32")
    assert command("run", "-b", "numpy", *words).returncode == 3
    exported = command("export", tmp_path / "in", *words, "--case", f"{case}/*")
    assert exported.returncode == 0, exported.stderr
    assert list((tmp_path / "in").glob("weighted_cross_attention__normal__*.safetensors"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "port.toml").write_text('profiles = ["weighted_cross_attention"]\n')
    graded = command("grade", tmp_path / "in", tmp_path / "out", "--spec", CROSS)
    assert graded.returncode == 1, graded.stderr
    assert "missing" in graded.stdout
    other = tmp_path / "other.py"
    text = CROSS.read_text(encoding="utf-8")
    other.write_text(text.replace("sqrt(c)", "sqrt(d)"), encoding="utf-8")
    graded = command("grade", tmp_path / "in", tmp_path / "out", "--spec", other)
    assert graded.returncode == 2
    assert "other equations of weighted_cross_attention: export again" in graded.stderr


def test_settings_name_files_beside_them(tmp_path: Path) -> None:
    file(tmp_path, DOUBLED)
    (tmp_path / "pyproject.toml").write_text('[tool.qkvac]\nspec = ["mine.py"]\n')
    (tmp_path / "inner").mkdir()
    for words in (("spec", "mine"), ("cases", "--profile", "mine")):
        done = command(*words, cwd=tmp_path / "inner")
        assert done.returncode == 0, done.stderr


def test_a_package_registers_profiles(tmp_path: Path) -> None:
    file(tmp_path, DOUBLED, "my_profiles.py")
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[qkvac.profiles]\nmine = my_profiles\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from qkvac.cli.main import main\nmain(['spec', *sys.argv[1:]])"
    )
    for words, equation in ((["mine"], "C[n, d] = X + X"), ([], "Q[n, c] = X @ Wq")):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert equation in done.stdout


def test_pytest_takes_a_file() -> None:
    words = (
        *("--qkvac-port", VARIANTS / "differential" / "port.py", "--qkvac-spec", DIFFERENTIAL),
        *("--qkvac-dtype", "float32", "--qkvac-case", "differential_attention/normal/*"),
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("--pyargs", "qkvac.tests.conformance", *map(str, words)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


def test_python_takes_a_file() -> None:
    report = qkvac.check(
        VARIANTS / "differential" / "port.py",
        spec=DIFFERENTIAL,
        dtypes=["float32"],
        cases=["differential_attention/normal/*"],
    )
    assert report.passed


def test_what_is_to_be_done_next_names_the_file(tmp_path: Path) -> None:
    done = command("new", "port.py", "--spec", CROSS, cwd=tmp_path)
    assert f"then: qkvac check port.py --spec {CROSS}" in done.stdout
    written = (tmp_path / "port.py").read_text(encoding="utf-8")
    assert f"qkvac spec weighted_cross_attention --spec {CROSS}" in " ".join(written.split())


def test_what_is_no_module_offers_the_first_of_a_file() -> None:
    use([CROSS])
    assert parse({}).profiles == ("weighted_cross_attention",)
    use()
    assert parse({}).profiles == ("attention",)


# --- records --------------------------------------------------------------------------------------


def test_a_record_tells_the_equations_and_is_read_without_the_file(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    words = (
        "--spec",
        DIFFERENTIAL,
        "--dtype",
        "float32",
        "--case",
        "differential_attention/normal/*",
    )
    done = command("check", VARIANTS / "differential" / "port.py", *words, "--record", record)
    assert done.returncode == 0, done.stdout[-2000:]
    header = json.loads(record.read_text(encoding="utf-8").splitlines()[0])
    (told,) = header["run"]["equations"]
    assert told["source"] == "equations.py"
    assert told["profiles"][0]["takes"] == ["X", "W1", "U1", "W2", "U2", "Wv", "lam"]
    assert command("report", "markdown", record).returncode == 0
    page = tmp_path / "page.html"
    assert command("report", "html", record, "-o", page).returncode == 0
    assert "and another, times λ" in page.read_text(encoding="utf-8")


def test_equations_of_a_record_that_cannot_be_read_are_refused() -> None:
    told = {"name": "mine", "about": "", "texts": {"plain": "X[n\n"}}
    told |= {"takes": ["X"], "returns": ["C"], "reports": [], "shared": []}
    with pytest.raises(UsageError, match="the equations of a"):
        recall([{"source": "a.py", "sha256": "0" * 64, "profiles": [told]}])


def test_two_profiles_of_a_name_in_records_are_refused(tmp_path: Path) -> None:
    use([file(tmp_path, DOUBLED)])
    told = {"name": "mine", "about": "", "texts": {"plain": "X[n, d]\nC[n, d] = X - X"}}
    told |= {"takes": ["X"], "returns": ["C"], "reports": [], "shared": []}
    with pytest.raises(UsageError, match="mine has other equations"):
        recall([{"source": "a.py", "sha256": "0" * 64, "profiles": [told]}])
