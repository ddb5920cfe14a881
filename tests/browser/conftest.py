"""One Chromium for all tests, and the reports that they look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest

from qkvac.tests.browser import reports

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

Open = Callable[..., "Page"]


def lacking(what: str) -> NoReturn:
    """Skips, or fails where QKVAC_BROWSER=required says that a browser has to be there."""
    if os.environ.get("QKVAC_BROWSER") == "required":
        pytest.fail(f"QKVAC_BROWSER=required, but there is {what}")
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if find_spec("playwright") is None or find_spec("axe_playwright_python") is None:
        lacking("no playwright with axe (pip install 'qkvac[dev]')")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        lacking("no Chromium (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The path of a report, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("reports")

    def file(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            reports.page(getattr(reports, name)(folder), path)
        return path

    return file


@pytest.fixture
def visit(browser: Browser, files: Callable[[str], Path]) -> Iterator[Open]:
    """Opens a report, offline; a complaint of the browser is a failure of the test."""
    contexts = []
    complaints = list[str]()

    def visit(name: str, fragment: str = "", ready: bool = True, **options: Any) -> Page:
        given = {"viewport": {"width": 1366, "height": 768}, "reduced_motion": "reduce"}
        context = browser.new_context(**{**given, **options})
        context.set_offline(True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.goto(files(name).as_uri() + fragment)
        if ready:
            page.wait_for_selector("html[data-ready]")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not complaints
