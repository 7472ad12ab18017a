"""The site builds, every page is in its navigation, and the functions that pages name exist."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path

import pytest

from focalroute.learn.update_report import Comparison, Diagnostics, UpdateReport
from tests.docs.snippets import LANGUAGES, ROOT, pages
from tests.evaluate.report_page.browsing import browse, browser

BUILD = ROOT / "docs" / "build.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "build"
    done = subprocess.run([sys.executable, str(BUILD), str(folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class Loaded(HTMLParser):
    """Collects what a browser would fetch for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.found += [given["src"] or ""] if given.get("src") else []
        self.found += [given["href"] or ""] if tag == "link" and given.get("href") else []


@pytest.mark.slow
def test_the_site_builds_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    """Strictly: no page is left out of the navigation, no link or anchor leads nowhere."""
    built = sorted(site.rglob("*.html"))
    expected = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in pages()[1:]} | {Path("index.html")}
    assert {path.relative_to(site) for path in built} >= expected
    loaded = Loaded()
    for path in built:
        loaded.feed(path.read_text("utf-8"))
    assert loaded.found
    assert [address for address in loaded.found if re.match(r"(\w+:)?//", address)] == []


@browser
def test_the_search_works_from_the_disk(site: Path, tmp_path: Path) -> None:
    """A browser starts no worker from a file: the site starts it in another way, on pages in folders, too."""
    page = site / "results" / "index.html"
    text = page.read_text("utf-8")
    start = "try { new Worker(JSON.parse(__config.textContent).search); document.title = 'started' } catch {}"
    tried = page.with_name("tried.html")
    tried.write_text(text.replace("</body>", f"<script>{start}</script></body>"), "utf-8")
    assert "<title>started</title>" in browse(tmp_path, tried, "--dump-dom").stdout


@pytest.mark.slow
def test_the_api_reference_has_what_is_exported(site: Path) -> None:
    import focalroute

    text = (site / "api.html").read_text("utf-8")
    assert [name for name in focalroute.__all__ if f'id="focalroute.{name}"' not in text] == ["__version__"]
    assert re.findall(r'<div class="doc-md-description">\s*</div>', text) == []


def test_a_page_without_a_place_fails_the_build(tmp_path: Path) -> None:
    for part in ("docs", "examples", "README.md", "SECURITY.md", "mkdocs.yml", "focalroute", "LICENSE"):
        (tmp_path / part).symlink_to(ROOT / part)
    (tmp_path / "docs").unlink()
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n")
    script = tmp_path / "docs" / "build.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "b")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert "lost.md" in done.stderr


def resolved(name: str) -> object:
    """What a dotted name below focalroute means."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(["focalroute", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def rows_of(text: str, column: str) -> list[str]:
    """The cells of a column of every table that has it."""
    cells, place = [], None
    for line in text.splitlines():
        row = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if not row:
            place = None
        elif place is None:
            place = row.index(column) if column in row else -1
        elif place >= 0 and not set(line) <= set("|- "):
            cells.append(row[place])
    return cells


@pytest.mark.parametrize(("page", "column"), [("how-it-works.md", "where"), ("equations.md", "function")])
def test_the_functions_beside_the_equations_are_there(page: str, column: str) -> None:
    cells = rows_of((ROOT / "docs" / page).read_text("utf-8"), column)
    assert len(cells) >= 9
    for cell in cells:
        names = re.findall(r"`([\w.]+)`", cell)
        assert names, f"a row names no function: {cell!r}"
        for name in names:
            assert resolved(name), name


@pytest.mark.parametrize("report", [UpdateReport, Diagnostics, Comparison])
def test_every_figure_of_an_update_is_explained(report: type) -> None:
    explained = re.findall(r"^ {8}(\w+): ", report.__doc__ or "", re.MULTILINE)
    assert set(explained) == {field.name for field in fields(report)}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_stand_in_blocks_that_are_checked(page: Path) -> None:
    """Only fenced blocks of known languages: an indented one would be run by nobody."""
    text = page.read_text("utf-8")
    opened = re.findall(r"^```(\w+)", text, re.MULTILINE)
    assert set(opened) <= set(LANGUAGES)
    outside = re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^ {4}(?:focalroute|python|make|pip|from|import) .*", outside, re.MULTILINE) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 700


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_opens_with_prose(page: Path) -> None:
    """Below its title a sentence, which says what the page is for: no table, code or list."""
    title, opening, *_ = re.sub(r"<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL).split("\n\n")
    assert title.startswith("# ")
    assert re.match(r"[\w`*]", opening)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_table_is_cut_in_two(page: Path) -> None:
    """Rows below an empty line have no head, and are shown as a paragraph of bars."""
    blocks = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL).split("\n\n")
    tables = [block.strip().splitlines() for block in blocks if block.strip().startswith("|")]
    assert [rows[0] for rows in tables if len(rows) < 2 or set(rows[1]) - set("|-: ")] == []
