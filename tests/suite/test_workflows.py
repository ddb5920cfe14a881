"""The workflows of CI, and the action that others check their ports with.

The shell steps of the action are run as a runner runs them: by bash with -e and pipefail, inputs
in the environment. What a workflow may do is read off its YAML.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github"
PAGE = ROOT / "docs" / "ci.md"

if not (ROOT / "action.yml").exists():
    pytest.skip("needs a checkout, not an installed package", allow_module_level=True)

yaml = pytest.importorskip("yaml")

PINNED: Final = re.compile(r"uses: (?:\./|\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$)")
"""An action of this repository, or a commit, with the version that people know it by."""
BASH: Final = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
TABLE: Final = re.compile(r"^\| `([a-z-]+)` \|", re.MULTILINE)

PORTS = ROOT / "tests" / "suite" / "ports"
RIGHT, WRONG = "tests/suite/ports/correct_plain.py", "tests/suite/ports/scores_not_scaled.py"


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


WORKFLOWS = {path.name: load(path) for path in sorted((FOLDER / "workflows").glob("*.yml"))}
ACTION = load(ROOT / "action.yml")


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every step there is, by where it stands."""
    for name, workflow in WORKFLOWS.items():
        for job, settings in workflow["jobs"].items():
            for number, step in enumerate(settings["steps"]):
                yield f"{name}-{job}-{number}", step
    for number, step in enumerate(ACTION["runs"]["steps"]):
        yield f"action-{number}", step


STEPS = dict(steps())
SCRIPTS = {where: step for where, step in STEPS.items() if "run" in step}


def script(workflow: str, job: str, id: str) -> str:
    (found,) = (s for s in WORKFLOWS[workflow]["jobs"][job]["steps"] if s.get("id") == id)
    text: str = found["run"]
    return text


def tox(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "tox", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


# --- what a workflow may do ---------------------------------------------------------------------


@pytest.mark.parametrize("where", SCRIPTS)
def test_nothing_is_written_into_a_script(where: str) -> None:
    """An expression in a script is replaced before bash reads it: whatever it holds is run."""
    assert "${{" not in SCRIPTS[where]["run"]


@pytest.mark.parametrize("path", [*(FOLDER / "workflows").glob("*.yml"), ROOT / "action.yml"])
def test_actions_are_pinned_to_commits(path: Path) -> None:
    uses = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert uses
    assert [line for line in uses if not PINNED.search(line)] == []


def test_a_tag_is_no_pin() -> None:
    assert not PINNED.search("uses: actions/checkout@v7")
    assert not PINNED.search(f"uses: actions/checkout@{'0' * 40}")


def test_one_action_has_one_commit() -> None:
    used = {step["uses"] for step in STEPS.values() if "uses" in step}
    assert len(used) == len({name.partition("@")[0] for name in used})


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_may_read_and_one_job_may_publish(name: str) -> None:
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    more = {job for job, settings in workflow["jobs"].items() if "permissions" in settings}
    assert more <= {"publish"}
    assert all("timeout-minutes" in settings for settings in workflow["jobs"].values())


def test_checkouts_leave_no_credentials_behind() -> None:
    checkouts = [s for s in STEPS.values() if s.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="needs shellcheck")
@pytest.mark.parametrize("where", SCRIPTS)
def test_shellcheck_has_nothing_to_say(where: str) -> None:
    done = subprocess.run(
        ["shellcheck", "--shell=bash", "-"],
        input=SCRIPTS[where]["run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""


# --- what they run ------------------------------------------------------------------------------


def test_every_environment_of_the_matrix_becomes_a_job(tmp_path: Path) -> None:
    """The first job's script, run as it stands; the second takes its jobs from the output."""
    names = tox("list", "--no-desc", "-m", "matrix")
    for file in ("tox.ini", "pyproject.toml", ".github/environments.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    output = tmp_path / "output"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [*BASH, "-c", script("matrix.yml", "environments", "list")],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "GITHUB_OUTPUT": str(output)},
        check=True,
    )
    key, _, value = output.read_text(encoding="utf-8").strip().partition("=")
    found = json.loads(value)
    assert [job["name"] for job in found] == names
    for job in found:
        assert job["name"].startswith(f"py{job['python'].replace('.', '')}-")
    jobs = WORKFLOWS["matrix.yml"]["jobs"]
    assert jobs["environments"]["outputs"] == {key: f"${{{{ steps.list.outputs.{key} }}}}"}
    strategy = jobs["run"]["strategy"]["matrix"]
    assert strategy == {"environment": f"${{{{ fromJSON(needs.environments.outputs.{key}) }}}}"}
    assert 10 < len(found) <= 256, "GitHub makes no more jobs of a matrix"


@pytest.mark.parametrize("names", ["numpy\n", "\n", "py313\n"])
def test_an_environment_without_a_python_is_no_job(names: str) -> None:
    command = [sys.executable, str(FOLDER / "environments.py")]
    done = subprocess.run(command, input=names, capture_output=True, text=True, check=False)
    assert done.returncode
    assert done.stdout == ""


def test_a_missing_python_fails_its_job() -> None:
    """tox is told to skip such an environment, which is right for a machine, not for a job."""
    (step,) = (s for s in WORKFLOWS["matrix.yml"]["jobs"]["run"]["steps"] if "env" in s)
    assert "--skip-missing-interpreters=false" in step["run"]


def test_environments_of_ci_are_environments_of_tox() -> None:
    matrix = WORKFLOWS["ci.yml"]["jobs"]["checks"]["strategy"]["matrix"]
    chosen = [*matrix["environment"], *(more["environment"] for more in matrix["include"])]
    assert {*chosen, "libraries"} <= set(tox("list", "--no-desc"))
    assert {"suite", "browser"} <= {*matrix["environment"]}
    systems = {*matrix["system"], *(more["system"] for more in matrix["include"])}
    assert systems == {"ubuntu-latest", "macos-latest"}, "what the README promises"
    run = [s["run"] for s in WORKFLOWS["ci.yml"]["jobs"]["libraries"]["steps"] if "env" in s]
    shards = WORKFLOWS["ci.yml"]["jobs"]["libraries"]["strategy"]["matrix"]["shard"]
    assert run == [f'tox run -e libraries -- --qkvac-shard "$SHARD/{len(shards)}"']
    assert shards == list(range(1, len(shards) + 1))


def test_commands_of_the_report_exist() -> None:
    from qkvac.cli.main import cli

    (step,) = (s for s in WORKFLOWS["matrix.yml"]["jobs"]["report"]["steps"] if "name" in s)
    words = re.findall(r"qkvac report (\w+)", step["run"])
    assert words
    report = cli.commands["report"]
    assert set(words) <= set(getattr(report, "commands", {}))


# --- the action ---------------------------------------------------------------------------------


def check(
    folder: Path, port: str, inputs: Mapping[str, str], change: tuple[str, str] = ("", "")
) -> tuple[int, dict[str, str], str]:
    """The action's check in a folder: exit status, outputs, and the summary of the job."""
    (step,) = (step for step in ACTION["runs"]["steps"] if step.get("id") == "check")
    given = {name: settings.get("default", "") for name, settings in ACTION["inputs"].items()}
    given |= {**inputs, "port": port}
    values = {
        name: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: given[found[1]], text)
        for name, text in step["env"].items()
    }
    files = {name: folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.write_text("", encoding="utf-8")
    done = subprocess.run(
        [*BASH, "-c", step["run"].replace(*change)],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "QKVAC_CACHE": str(folder / "cache"),
            "RUNNER_TEMP": str(folder),
            **{name: str(path) for name, path in files.items()},
            **values,
        },
        check=False,
    )
    lines = files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    return done.returncode, outputs, files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")


SMALL = {"profile": "attention", "dtype": "float32", "args": "--case 'normal/33*'"}


def test_the_action_passes_a_right_port(tmp_path: Path) -> None:
    status, outputs, summary = check(tmp_path, RIGHT, SMALL)
    assert (status, outputs["exit-status"]) == (0, "0")
    assert re.fullmatch(r"CONFORMS: .* as the spec in float32\.", outputs["sentence"])
    assert "correct_plain" in summary
    made = {path.name for path in (tmp_path / "qkvac-report").iterdir()}
    assert made == {"record.jsonl", "index.html", "badge.svg", "check.txt"}


def test_the_action_fails_a_wrong_port(tmp_path: Path) -> None:
    status, outputs, summary = check(tmp_path, WRONG, SMALL)
    assert (status, outputs["exit-status"]) == (1, "1")
    assert outputs["sentence"].startswith("DEVIATES: scores_not_scaled@cpu deviates")
    assert "scores_not_scaled" in summary
    assert (tmp_path / "qkvac-report" / "index.html").exists()


def test_the_action_says_what_it_cannot_check(tmp_path: Path) -> None:
    status, outputs, summary = check(tmp_path, "no_such_port.py", {})
    assert (status, outputs["exit-status"]) == (2, "2")
    assert outputs["sentence"].startswith("qkvac: no_such_port.py: no such file")
    assert outputs["sentence"] in summary


def test_every_input_reaches_the_check(tmp_path: Path) -> None:
    chosen = {"profile": "attention  causal_attention", "dtype": "float64 float32"}
    args = "--case 'normal/6*' --case \"hot/*\""
    status, _, _ = check(tmp_path, RIGHT, {**chosen, "args": args})
    lines = (tmp_path / "qkvac-report" / "record.jsonl").read_text(encoding="utf-8").splitlines()
    run: Mapping[str, Any] = json.loads(lines[0])["run"]
    assert run["profiles"] == ["attention", "causal_attention"]
    assert run["dtypes"] == ["float64", "float32"]
    assert run["cases"] == ["normal/6*", "hot/*"]
    assert status in (0, 1)


def test_a_program_is_a_port_too(tmp_path: Path) -> None:
    program = tmp_path / "answers nothing.sh"
    program.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    program.chmod(0o755)
    status, outputs, _ = check(tmp_path, f"-- '{program}' --flag", SMALL)
    assert (status, outputs["exit-status"]) == (1, "1")
    assert "C" in outputs["sentence"]


@pytest.mark.parametrize("name", ["port", "profile", "dtype", "args"])
@pytest.mark.parametrize(
    "text", ["$(touch MARK)`touch MARK`;touch MARK", "\"; touch MARK; '; touch MARK #"]
)
def test_no_input_is_run(tmp_path: Path, name: str, text: str) -> None:
    mark = tmp_path / "mark"
    inputs = {"port": "no_such_port.py", **SMALL, name: text.replace("MARK", str(mark))}
    status, _, _ = check(tmp_path, inputs["port"], inputs)
    assert status != 0
    assert not mark.exists()


def test_a_script_that_evaluated_its_inputs_would_be_caught(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    change = ('words+=("$PORT")', 'eval "words+=($PORT)"')
    check(tmp_path, f"$(touch {mark})", {}, change)
    assert mark.exists()


def test_a_port_is_no_option(tmp_path: Path) -> None:
    status, outputs, _ = check(tmp_path, "--help", {})
    assert (status, outputs["exit-status"]) == (2, "2")


def test_the_page_describes_all_inputs_and_outputs() -> None:
    rows = TABLE.findall(PAGE.read_text(encoding="utf-8"))
    assert rows[: len(ACTION["inputs"])] == list(ACTION["inputs"])
    assert rows[len(ACTION["inputs"]) :] == list(ACTION["outputs"])
    assert all(settings["description"] for settings in ACTION["inputs"].values())


def test_the_pages_examples_use_inputs_that_there_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    used = [s for b in blocks for s in yaml.safe_load(b)["steps"] if "qkvac@" in s.get("uses", "")]
    assert len(used) == len(blocks) == 2
    required = {name for name, settings in ACTION["inputs"].items() if settings.get("required")}
    for step in used:
        assert required <= set(step["with"]) <= set(ACTION["inputs"])
    assert len(blocks[0].splitlines()) == 5
