"""Badges: green only for what conforms, in the form that shields.io and a browser read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvac.cells import Status
from qkvac.cli.main import main
from qkvac.publication.archive import Archive, read
from qkvac.publication.badge import HEX, Badge, badge, endpoint, svg
from qkvac.records.conclusion import CONFORMS, DEVIATES, KNOWN, UNPROVED
from qkvac.records.words import FAILED
from qkvac.tests.suite.records import HOSTILE, environment, lines, result, write

GREEN, MIXED, RED, GREY = (each.color for each in (CONFORMS, KNOWN, DEVIATES, UNPROVED))
SVG = "{http://www.w3.org/2000/svg}"


def archive(folder: Path, *statuses: str, **run: Any) -> Archive:
    given = [
        result("C" if place == 0 else f"q{place}", status=status)
        for place, status in enumerate(statuses)
    ]
    return read(write(folder / "a.jsonl", lines(given, **run)), allow_truncated=True)


@pytest.mark.parametrize(
    ("statuses", "footer", "message", "color"),
    [
        (["passed", "passed"], True, "conforms 2/2", GREEN),
        (["passed", "skipped", "unsupported", "not reported"], True, "conforms 1/1", GREEN),
        (["passed", "known deviation"], True, "conforms with known deviations 1/2", MIXED),
        (["passed", "indecisive"], True, "conforms 1/2", MIXED),
        (["passed", "failed"], True, "deviates, 1 of 2 fail", RED),
        (["passed", "unexpected pass"], True, "unexpected pass, 1 of 2 fail", RED),
        (["passed", "failed"], False, "deviates, 1 of 2 fail", RED),
        (["crash", "crash"], True, "not run", RED),
        (["passed", "passed"], False, "unfinished", GREY),
        (["skipped"], True, "nothing proved", GREY),
        (["indecisive"], True, "nothing proved", GREY),
        ([], True, "nothing proved", GREY),
    ],
)
def test_a_badge_is_green_for_what_conforms_alone(
    tmp_path: Path, statuses: list[str], footer: bool, message: str, color: str
) -> None:
    assert badge(archive(tmp_path, *statuses, footer=footer)) == Badge("qkvac", message, color)


@given(statuses=st.lists(st.sampled_from(Status.ALL), max_size=6), footer=st.booleans())
def test_green_means_that_the_exit_status_was_0_and_nothing_deviates(
    tmp_path_factory: pytest.TempPathFactory, statuses: list[str], footer: bool
) -> None:
    found = archive(tmp_path_factory.mktemp("a"), *statuses, footer=footer)
    (report,) = found.reports.values()
    made = badge(found)
    deviates = {*statuses} & {Status.KNOWN_DEVIATION, Status.INDECISIVE}
    assert (made.color == GREEN) == (report.exit_status == 0 and footer and not deviates)
    assert (made.color == RED) == (report.exit_status == FAILED)


def test_one_environment_that_proves_nothing_takes_the_green_away(tmp_path: Path) -> None:
    other = lines([result(status=Status.SKIPPED)], environment(threads=2))
    path = write(tmp_path / "a.jsonl", lines([result()]), other)
    assert badge(read(path)).color == GREY


@pytest.mark.parametrize("label", ["qkvac", *HOSTILE, ""])
def test_any_label_makes_a_picture_and_an_endpoint(tmp_path: Path, label: str) -> None:
    made = badge(archive(tmp_path, "passed"), label)
    picture = ElementTree.fromstring(svg(made))
    texts = [element.text for element in picture.iter(f"{SVG}text")]
    assert texts == [made.label, made.message]
    assert {element.tag for element in picture.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "title", "clipPath", "rect", "g", "text")
    }
    data = json.loads(endpoint(made))
    assert data == {
        "schemaVersion": 1,
        "label": made.label,
        "message": made.message,
        "color": made.color,
    }
    assert made.label
    assert made.label.isprintable()


def luminance(color: str) -> float:
    """Relative luminance of WCAG 2."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("color", HEX.values())
def test_white_letters_can_be_read_on_every_color(color: str) -> None:
    assert 1.05 / (luminance(color) + 0.05) >= 4.5


def test_the_command_chooses_the_form(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = str(write(tmp_path / "a.jsonl", lines([result()])))
    made = {}
    for name, words in (
        ("out", []),
        ("-", ["-o", "-"]),
        ("b.json", ["-o", str(tmp_path / "b.json")]),
        ("b.svg", ["-o", str(tmp_path / "b.svg"), "--label", "mine"]),
        ("c.json", ["-o", str(tmp_path / "c.json"), "--format", "svg"]),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["report", "badge", path, *words])
        assert ended.value.code == 0
        file = tmp_path / name
        made[name] = file.read_bytes() if file.exists() else capsysbinary.readouterr().out
    assert made["out"] == made["-"]
    assert json.loads(made["out"]) == json.loads(made["b.json"])
    assert b">mine</text>" in made["b.svg"]
    assert made["c.json"].startswith(b"<svg")


def test_a_form_that_a_badge_does_not_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "a.jsonl", lines([result()])))
    with pytest.raises(SystemExit) as ended:
        main(["report", "badge", path, "-o", str(tmp_path / "b.png")])
    assert ended.value.code == 2
    assert "ends in neither .json nor .svg" in capsys.readouterr().err
    assert not (tmp_path / "b.png").exists()
