"""A conformance report as one HTML file, which needs nothing besides itself.

Everything of the record goes through the template's escaping, which also shows characters that
would hide, or into compressed data that the page's own script shows as text. The page's policy
allows this script and this style sheet by their digests and nothing else, so that no text of a
record could run or load anything even if it became markup.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from qkvac.cells import Result
from qkvac.publication.archive import Archive
from qkvac.publication.columns import packed
from qkvac.publication.page import moved, page
from qkvac.publication.runs import Run
from qkvac.publication.strips import BOUND, END, MARGIN, WIDTH, ticks
from qkvac.publication.texts import number
from qkvac.records.words import NOT_PROVED
from qkvac.spec.attention import CONVENTIONS
from qkvac.spec.verdicts import clauses, statuses
from qkvac.texts import visible

SAFE: Final = "/@:,"
"""What a link leaves as it is, besides letters, digits and -._~"""


def render(archive: Archive) -> str:
    """The page. Equal archives make equal pages: nothing in it tells when it was made."""
    model = page(archive)
    style, script = _file("page.css"), _file("page.js")
    text: str = _template().render(
        page=model,
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, script),
        data=packed(model.runs),
        conventions=CONVENTIONS,
        not_proved=NOT_PROVED,
        clauses=clauses.CLAUSES,
        statuses=statuses.STATUSES,
        scale={"width": WIDTH, "margin": MARGIN, "ticks": ticks(), "bound": BOUND, "end": END},
    )
    return text.lstrip()


def policy(style: str, script: str) -> str:
    """The content security policy: this style, this script, nothing else; no text becomes code."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_digest(style)}'",
            f"script-src '{_digest(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def cells(**filters: str) -> str:
    """A link to the cells that have these values."""
    shown = {name: quote(visible(value), SAFE) for name, value in filters.items()}
    return "#" + "&".join(f"{name}={value}" for name, value in shown.items())


def cell(run: Run, result: Result, merged: bool) -> str:
    """The link to a cell, which stays the same as long as its id does."""
    where = {"environment": run.id} if merged else {}
    return cells(cell=result.cell.id, **where)


def _template() -> Any:
    environment = Environment(
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: f"{value:,}",
        "number": number,
        "markup": Markup,
        "plural": lambda count, word: f"{count:,} {word}{'' if count == 1 else 's'}",
    }
    environment.globals |= {"cells": cells, "cell": cell, "moved": moved}
    return environment.from_string(_file("page.html.j2"))


def _shown(value: Any) -> Any:
    """What the template puts out: no text of a record with characters that hide."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _file(name: str) -> str:
    return (resources.files("qkvac.publication") / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
