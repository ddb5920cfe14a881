"""The report as people use it: on every screen, by every means, whatever the record holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from jinja2 import Environment

from qkvac.cells import Status
from qkvac.publication.archive import Archive
from qkvac.tests.browser import reports
from qkvac.tests.browser.conftest import Open
from qkvac.tests.browser.reports import FAILING, SNIPPET

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LAPTOP, TABLET, PHONE = ((1366, 768), (820, 1180), (390, 844))
BAD: Final = sorted(Status.BAD)

OPEN: Final = "for (const part of document.querySelectorAll('details')) part.open = true"


def shown(page: Page) -> int:
    """How many cells the filters leave, as the page says."""
    text = page.inner_text("#found")
    return int(text.split(" of ", 1)[0].replace(",", ""))


def rows(page: Page) -> list[list[str]]:
    """What the table of cells shows."""
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    found: list[list[str]] = page.eval_on_selector_all("#table tbody tr", script)
    return found


def until(page: Page, script: str) -> None:
    """Waits until an expression is true; the page's policy keeps Playwright from doing so."""
    for _ in range(400):
        if page.evaluate(script):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"not within 20 s: {script}")


def choose(page: Page, **filters: str) -> None:
    """Sets filters and waits until the table follows."""
    for name, value in filters.items():
        field = page.locator(f"#filters [name={name}]")
        field.fill(value) if name == "q" else field.select_option(value)
    for name, value in filters.items():
        shown = "decodeURIComponent(location.hash).slice(1).split('&')"
        until(page, f"{shown}.includes({json.dumps(f'{name}={value}')})")


def count(archive: Archive, test: Callable[[Any], bool]) -> int:
    return sum(test(line.result) for line in archive.lines)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return reports.single(tmp_path_factory.mktemp("single"))


# --- screens ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [LAPTOP, TABLET, PHONE])
@pytest.mark.parametrize("name", ["single", "merged"])
def test_nothing_sticks_out_of_any_screen(visit: Open, name: str, size: tuple[int, int]) -> None:
    page = visit(name, viewport={"width": size[0], "height": size[1]})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate(OPEN)
    page.evaluate(f"location.hash = 'cell={FAILING}'")
    wide = page.evaluate(
        "[...document.querySelectorAll('main *')].filter(part =>"
        " part.getBoundingClientRect().right > innerWidth + 1 && !part.closest('.scroll, pre'))"
        ".map(part => part.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_what_sticks_out_is_noticed(visit: Open) -> None:
    page = visit("passing", viewport={"width": PHONE[0], "height": PHONE[1]})
    page.evaluate("for (const part of document.querySelectorAll('.scroll')) part.className = ''")
    assert not page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("size", [LAPTOP, PHONE])
def test_the_first_screen_says_whether_where_and_why(
    visit: Open, size: tuple[int, int], single: Archive
) -> None:
    page = visit("single", viewport={"width": size[0], "height": size[1]})
    assert page.inner_text("h1").endswith("DEVIATES")
    passed = count(single, lambda r: r.status in Status.PASSES)
    absent = Status.NOT_REQUIRED
    required = count(single, lambda r: r.status not in absent)
    assert page.inner_text(".figure") == f"{passed} of {required} required cells passed"
    place = page.locator(".places li").first
    assert "my_port@cpu" in page.inner_text(".places")
    assert "1/d instead of 1/√c" in page.inner_text(".places")
    box = place.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < size[1]


def test_light_and_dark_are_different(visit: Open) -> None:
    colours = {
        visit("passing", color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    }
    assert len(colours) == 2


def test_nothing_moves_for_who_wants_no_motion(visit: Open) -> None:
    behaviour = "getComputedStyle(document.documentElement).scrollBehavior"
    assert visit("passing", reduced_motion="no-preference").evaluate(behaviour) == "smooth"
    assert visit("passing", reduced_motion="reduce").evaluate(behaviour) == "auto"


def test_printed_pages_have_everything_but_controls(visit: Open) -> None:
    page = visit("single")
    page.emulate_media(media="print")
    assert page.locator("nav.contents").is_hidden()
    assert page.locator("#cells").is_hidden()
    assert page.locator(".copy").first.is_hidden()
    closed = page.locator("details:not([open])").count()
    assert closed
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details:not([open])").count() == closed
    assert page.pdf().startswith(b"%PDF")


def test_equations_are_typeset(visit: Open) -> None:
    page = visit("passing")
    fraction = page.locator("#equations mfrac").first.bounding_box()
    letter = page.locator("#equations mi").first.bounding_box()
    assert fraction is not None
    assert letter is not None
    assert fraction["height"] > 1.3 * letter["height"], "a bar stands between two lines"


def test_without_scripts_the_matrix_and_the_failures_are_there(visit: Open) -> None:
    page = visit("single", ready=False, java_script_enabled=False)
    for part in ("#verdict h1", "#overview table", "#quantities table", ".trouble pre"):
        assert page.locator(part).first.is_visible(), part
    assert page.locator("#explorer").is_hidden()
    assert page.locator(".copy").first.is_hidden()
    assert page.get_by_text("needs JavaScript").is_visible()


# --- finding ------------------------------------------------------------------------------------


def test_filters_find_what_the_record_holds(visit: Open, single: Archive) -> None:
    page = visit("single")
    assert shown(page) == len(single.lines)
    choose(page, status="failing")
    assert shown(page) == count(single, lambda r: r.status in Status.BAD)
    choose(page, status="failing", subject="my_port@cpu")
    assert shown(page) == count(
        single, lambda r: r.status in Status.BAD and r.cell.subject.backend == "my_port"
    )
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.input_value("#filters [name=subject]") == "my_port@cpu", "the address keeps them"
    page.click("#filters button[type=reset]")
    until(page, "location.hash === ''")
    assert shown(page) == len(single.lines)
    choose(page, quantity="checks", dtype="float32")
    assert shown(page) == count(
        single, lambda r: r.cell.quantity == "repeat" and r.cell.dtype == "float32"
    )


@pytest.mark.parametrize(
    ("words", "test"),
    [
        ("1/√c", lambda r: "1/√c" in (r.diagnosis or "")),
        ("TORCH/eager normal", lambda r: "normal" in r.cell.case and "torch" in r.cell.id),
        (FAILING, lambda r: r.cell.id == FAILING),
        ("because skipped", lambda r: r.status == Status.SKIPPED),
        ("nothing like this", lambda r: False),
    ],
)
def test_words_are_found(
    visit: Open, single: Archive, words: str, test: Callable[[Any], bool]
) -> None:
    page = visit("single")
    choose(page, q=words)
    expected = count(single, test)
    assert shown(page) == expected
    assert len(rows(page)) == min(expected, 100)


def test_sorting_and_turning_pages_show_every_cell_once(visit: Open, single: Archive) -> None:
    page = visit("single")
    page.click("th[data-sort=ratio] button")
    ratios = list[float]()
    while True:
        ratios += [float(row[5]) for row in rows(page)]
        if page.locator("#after").is_disabled():
            break
        page.click("#after")
    expected = sorted((line.result.ratio for line in single.lines if line.result.ratio), key=float)
    assert ratios == [float(f"{ratio:.3g}") for ratio in reversed(expected)]
    assert page.get_attribute("th[data-sort=ratio]", "aria-sort") == "descending"


def test_a_mark_of_the_matrix_leads_to_its_cells(visit: Open, single: Archive) -> None:
    page = visit("single")
    page.click("#overview tr:has-text('jax/jit') .chip")
    assert shown(page) == count(single, lambda r: r.cell.subject.backend == "jax")
    page.click("#quantities tbody tr:has-text('my_port') td:nth-of-type(5) .chip >> nth=1")
    assert shown(page) == count(
        single,
        lambda r: r.cell.id.startswith("my_port@cpu-float32") and r.cell.quantity == "C",
    )


def test_links_to_a_cell_open_it_wherever_it_is(visit: Open) -> None:
    page = visit("single", f"#cell={FAILING}")
    assert FAILING in page.inner_text("#cell-title")
    text = page.inner_text("#cell")
    for part in ("worst", "0.75", "certified 0.5", "1/d instead of 1/√c", "400", SNIPPET[:19]):
        assert part.lower() in text.lower(), part
    assert page.evaluate("document.activeElement.id") == "cell-title"
    page.click("#cell-close")
    assert page.locator("#cell").is_hidden()
    page.click("a[href*='cell=torch']:not([href*='environment']) >> nth=0")
    assert "torch/eager@cpu" in page.inner_text("#cell-title")
    page.evaluate("location.hash = 'cell=nobody@cpu-float32-attention/normal/33x20x7-C'")
    until(page, "document.getElementById('found').textContent.includes('no cell')")


def test_cells_of_several_environments_have_links_of_their_own(visit: Open) -> None:
    page = visit("merged")
    id = "torch/eager@cpu-float32-attention/normal/33x20x7-A"
    page.evaluate(f"location.hash = 'q={id}'")
    until(page, "document.getElementById('found').textContent.startsWith('3 of')")
    opened = set()
    for number in range(3):
        page.click(f"#table tbody tr:nth-child({number + 1}) a")
        opened.add(page.locator("#cell dd", has_text=re.compile(r"^torch \d\S+ \(")).inner_text())
        until(page, "location.hash.includes('environment=')")
        page.evaluate(f"location.hash = 'q={id}'")
    assert len(opened) == 3


def test_versions_of_a_framework_are_compared_where_they_can_be(visit: Open) -> None:
    text = visit("merged").inner_text("#changes")
    assert re.search(r"2\.4\.1 torch 2\.4\.1 →\s*to\s*2\.13\.0 torch 2\.13\.0", text)
    assert re.search(r"\d+ of \d+ changed", text)
    assert "A of attention, float32" in text
    assert "not comparable" in text


# --- copying ------------------------------------------------------------------------------------


def test_snippets_and_commands_are_copied_as_they_are(visit: Open) -> None:
    page = visit("single", permissions=["clipboard-read", "clipboard-write"])
    read = "navigator.clipboard.readText()"
    trouble = page.locator(".trouble", has_text="1/d instead").first
    trouble.locator("button.copy").first.click()
    until(page, "document.body.innerText.includes('Copied')")
    assert page.evaluate(read) == trouble.locator("pre").first.inner_text()
    assert page.evaluate(read).startswith("qkvac check my_port.py --case attention/normal")
    trouble.locator("summary").first.click()
    trouble.locator("details button.copy").first.click()
    until(page, "navigator.clipboard.readText().then(text => text.includes('numpy'))")
    assert page.evaluate(read) == SNIPPET
    page.evaluate(f"location.hash = 'cell={FAILING}'")
    page.click("#cell-link")
    until(page, "navigator.clipboard.readText().then(text => text.includes('#cell='))")
    assert page.evaluate(read) == page.url.split("#")[0] + f"#cell={FAILING}"


def test_copying_does_without_the_clipboard_interface(visit: Open) -> None:
    page = visit("single")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.locator(".trouble button.copy").first.click()
    until(page, "document.body.innerText.includes('Copied')")
    page.focus("#filters [name=q]")
    page.keyboard.press("Control+V")
    assert page.input_value("#filters [name=q]").startswith("qkvac ")


# --- everybody ----------------------------------------------------------------------------------


def violations(page: Page) -> list[str]:
    """What axe-core finds, one line each."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:120]}" for each in found]


@pytest.mark.parametrize(("name", "scheme"), [("single", "light"), ("merged", "dark")])
def test_axe_finds_nothing(visit: Open, name: str, scheme: str) -> None:
    page = visit(name, f"#cell={FAILING}", color_scheme=scheme, bypass_csp=True)
    page.evaluate(OPEN)
    assert violations(page) == []


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        ("document.querySelector('.sentence').style.color = '#bbb'", "color-contrast"),
        ("document.querySelector('#filters select').parentNode.replaceWith("
         "document.querySelector('#filters select'))", "select-name"),
        ("document.querySelector('html').lang = ''", "html-has-lang"),
    ],
)  # fmt: skip
def test_axe_finds_what_is_wrong(visit: Open, damage: str, rule: str) -> None:
    page = visit("passing", bypass_csp=True)
    page.evaluate(damage)
    assert any(found.startswith(f"{rule}:") for found in violations(page))


def test_headings_are_in_order_and_tables_have_names(visit: Open) -> None:
    page = visit("single")
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.evaluate("[...document.querySelectorAll('table')].every(t => t.tHead)")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('table')].filter(t => !t.caption"
        " && !t.closest('[aria-label]')).length"
    )
    assert unnamed == 0


def test_the_keyboard_reaches_everything_and_shows_where_it_is(visit: Open) -> None:
    page = visit("single")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) != "none"
    page.focus("#filters [name=q]")
    for _ in range(40):
        page.keyboard.press("Tab")
        assert page.evaluate(outline) != "none"
        if page.evaluate("document.activeElement.closest('#table tbody') !== null"):
            break
    else:
        pytest.fail("the table is not reached")
    page.keyboard.press("Enter")
    assert page.locator("#cell").is_visible()


# --- strangers ----------------------------------------------------------------------------------


def intrusions(page: Page) -> list[str]:
    """Elements and attributes that the report does not have, and what scripts left behind."""
    return list(
        page.evaluate(
            """() => [
              ...document.querySelectorAll('img, iframe, object, embed, link, base, svg[onload]'),
              ...[...document.scripts].filter(s => s.id !== 'data' && s !== document.scripts[1]),
              ...[...document.querySelectorAll('*')].filter(part =>
                [...part.attributes].some(a => a.name.startsWith('on') || a.name === 'style'
                  || /^\\s*javascript:/i.test(a.value))),
            ].map(part => part.outerHTML.slice(0, 80)).concat(window.hacked ? ['ran'] : [])"""
        )
    )


def test_no_text_of_a_record_becomes_markup_or_runs(visit: Open) -> None:
    page = visit("hostile")
    page.evaluate(OPEN)
    assert intrusions(page) == []
    text = page.inner_text("body")
    for each in ("<script>window.hacked = 1</script>", "{{ 7 * 7 }}", "\\u202e", "onerror="):
        assert each in text, "it is shown as it is"
    assert "49{%" not in text
    assert "\u202e" not in text
    links = page.eval_on_selector_all("#table a", "links => links.map(link => link.href)")
    for link in links[::4]:
        page.evaluate("address => { location.href = address }", link)
        until(page, "!document.getElementById('cell').hidden")
        assert intrusions(page) == []


def test_markup_of_a_record_would_be_noticed(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(**options: Any) -> Environment:
        return Environment(**{**options, "autoescape": False})

    monkeypatch.setattr("qkvac.publication.html.Environment", careless)
    path = reports.page(reports.hostile(tmp_path), tmp_path / "careless.html")
    page = browser.new_page()
    page.goto(path.as_uri())
    assert intrusions(page) != []
    assert not page.evaluate("'hacked' in window"), "the policy stops what escaping lets through"
    page.close()


def test_the_policy_lets_no_other_code_run(browser: Browser, files: Callable[[str], Path]) -> None:
    page = browser.new_page()
    page.goto(files("passing").as_uri())
    page.wait_for_selector("html[data-ready]")
    page.evaluate(
        "() => { const made = document.createElement('script');"
        " try { made.text = 'window.hacked = 1' } catch {} document.body.append(made) }"
    )
    assert not page.evaluate("'hacked' in window")
    refused = "() => { try { document.body.innerHTML = '<p>' } catch (e) { return e.name } }"
    assert page.evaluate(refused) == "TypeError"
    page.close()


# --- size ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_hundred_thousand_cells_stay_usable(browser: Browser, tmp_path: Path) -> None:
    archive = reports.many(100_000)
    path = reports.page(archive, tmp_path / "many.html")
    assert path.stat().st_size < 4 << 20
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert shown(page) == 100_000
    assert len(rows(page)) == 100, "the table holds one page of them"
    assert page.evaluate("document.querySelectorAll('*').length") < 50_000
    choose(page, subject="backend7/eager@cpu", quantity="C", dtype="float32")
    assert shown(page) == count(
        archive,
        lambda r: r.cell.id.startswith("backend7/eager@cpu-float32") and r.cell.quantity == "C",
    )
    last = archive.lines[-1].result.cell.id
    page.evaluate("id => { location.hash = `cell=${id}` }", last)
    until(page, "!document.getElementById('cell').hidden")
    assert last in page.inner_text("#cell-title")
    page.close()
