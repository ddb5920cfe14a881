"""The commands that make something of records. Nothing heavy is imported before one needs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qkvac.texts import short
from qkvac.usage import UsageError

if TYPE_CHECKING:
    from qkvac.publication.archive import Archive

RECORD = click.Path(path_type=Path)

EPILOG = (
    "RECORDs are what `qkvac run --record FILE` and the like write, or `qkvac report merge`; they "
    "are read as data of strangers. Several are merged first. Exit status: 2 for a record that "
    "cannot be used."
)


def output(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option for where the result goes."""
    option = click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Default, and -: the standard output.",
    )
    return option(command)


def reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options for how records are read."""
    option = click.option(
        "--max-size",
        metavar="SIZE",
        default="1G",
        show_default=True,
        help="Refuse a larger record.",
    )
    return option(command)


truncated = click.option(
    "--allow-truncated", is_flag=True, help="Also take records of runs that ended early."
)

records = click.argument("records", metavar="RECORD...", nargs=-1, required=True, type=RECORD)


@click.group(epilog=EPILOG)
def report() -> None:
    """Merge, compare and publish records.

    \b
    qkvac run --record new.jsonl
    qkvac report diff old.jsonl new.jsonl
    qkvac report html new.jsonl -o report.html
    """


@report.command(epilog=EPILOG)
@records
@truncated
@reading
@output
def merge(
    records: tuple[Path, ...], allow_truncated: bool, max_size: str, output: Path | None
) -> None:
    """Make one record of many.

    They may be of many machines and environments, or the shards of one run. Every environment
    keeps its header. Records that were judged by different versions of the
    spec, that hold the same cell of the same environment, that contradict each other, or that end
    early are refused; so are shards of a run without the others.
    """
    from qkvac.publication.merging import written
    from qkvac.publication.output import emit

    emit(written(_read(records, max_size, allow_truncated)), output)


@report.command(epilog=EPILOG.replace("Several are merged first. ", ""))
@click.argument("old", type=RECORD)
@click.argument("new", type=RECORD)
@click.option("--strict", is_flag=True, help="Errors that grew towards the bound fail, too.")
@click.option(
    "--as",
    "called",
    metavar="OLD=NEW",
    multiple=True,
    help="Compare this subject of OLD with that one of NEW: two ports, two modes.",
)
@truncated
@reading
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@output
def diff(
    old: Path,
    new: Path,
    strict: bool,
    called: tuple[str, ...],
    allow_truncated: bool,
    max_size: str,
    form: str,
    output: Path | None,
) -> int:
    """Say what changed from OLD to NEW.

    Also what moved in between: versions, processor, settings, selection.

    Cells are matched by subject, dtype, case and quantity. Exit status 1 for a regression: a cell
    that fails and did not fail before, or one that passed and is not run, or not decided, any
    more. Cells that were fixed, cells that are new, errors that grew towards their bounds and
    results with other bits are listed.

    An error grew when it takes more than a quarter of its bound and more than twice what it took
    before. Bits are compared where processor, threads and settings are the same; elsewhere they
    may differ without any reason to look for, and are counted as not comparable.
    """
    from qkvac.publication.comparison import compare
    from qkvac.publication.output import emit
    from qkvac.publication.telling import to_json, to_text

    found = compare(
        _read((old,), max_size, allow_truncated),
        _read((new,), max_size, allow_truncated),
        dict(map(_pair, called)),
    )
    emit([to_json(found) if form == "json" else to_text(found)], output, (old, new))
    return 1 if found.regressed or (strict and found.grown) else 0


@report.command(epilog=EPILOG)
@records
@reading
@output
def html(records: tuple[Path, ...], max_size: str, output: Path | None) -> None:
    """Make a page that shows everything.

    It is one file, which loads nothing.

    A record of a run that ended early is shown under a banner that says so.
    """
    from qkvac.publication.html import render
    from qkvac.publication.output import emit

    emit([render(_read(records, max_size, True))], output, records)


@report.command(epilog=EPILOG)
@records
@reading
@output
def markdown(records: tuple[Path, ...], max_size: str, output: Path | None) -> None:
    """Make a summary for a CI job.

    Scores, what was not run, and every failure with the command that shows it again.

    \b
    qkvac report markdown run.jsonl >> "$GITHUB_STEP_SUMMARY"

    It stays below the 1 MiB that GitHub takes, and says so where something had to be left out.
    """
    from qkvac.publication.markdown import render
    from qkvac.publication.output import emit

    emit([render(_read(records, max_size, True))], output, records)


@report.command(epilog=EPILOG)
@records
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "svg"]),
    help="json is for shields.io's endpoint; default: as FILE ends, else json.",
)
@click.option("--label", default="qkvac", show_default=True, help="What stands on the left.")
@reading
@output
def badge(
    records: tuple[Path, ...], form: str | None, label: str, max_size: str, output: Path | None
) -> None:
    """Make a badge, green for what conforms.

    It is green only where everything that was run conforms. What was not run is not in its
    numbers, which are cells passed and cells run.
    """
    from qkvac.publication.badge import badge, endpoint, svg
    from qkvac.publication.output import emit

    if form is None:
        name = output or Path("-")
        form = "json" if str(name) == "-" else name.suffix.lower().removeprefix(".")
        if form not in ("json", "svg"):
            raise UsageError(f"{output} ends in neither .json nor .svg: say --format json or svg")
    made = badge(_read(records, max_size, True), label)
    emit([svg(made) if form == "svg" else endpoint(made)], output, records)


def _pair(text: str) -> tuple[str, str]:
    one, equals, other = text.partition("=")
    if not (one and equals and other):
        raise UsageError(f"--as {short(text)}: say OLD=NEW, as in --as my_port=my_other_port")
    return one, other


def _read(paths: tuple[Path, ...], max_size: str, allow_truncated: bool) -> Archive:
    from qkvac.publication.merging import read_all
    from qkvac.subjects.selection import size

    return read_all(paths, allow_truncated=allow_truncated, largest=size(max_size))
