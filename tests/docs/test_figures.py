"""The figures of the pages are those of the data, and a wrong one is found."""

from __future__ import annotations

import datetime
import json
import runpy
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import figures
from tests.docs.snippets import check_command

TABLE = {
    "taken": "2026-11-24",
    "command": "make x",
    "head": ["way", "stream", "gain"],
    "rows": [["ours", "a b", "0.656, -1.5 (-2.0 to +0.4)"], ["theirs", "a b", "0.6"]],
}


#: Pages with numbers of points that are no measurements, or of what was tried and not kept.
UNMEASURED = ("evaluating", "lessons")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of a project of its own, whose data have one table."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.json").write_text(json.dumps({"t": TABLE}))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "DATA", tmp_path / "data")
    monkeypatch.setattr(figures, "pages", lambda: [tmp_path / "page.md"])
    return tmp_path / "page.md"


@pytest.mark.parametrize("path", figures.pages(), ids=lambda path: path.name)
def test_every_figure_of_a_page_is_that_of_its_cell(path: Path) -> None:
    assert list(figures.findings(path)) == []


@pytest.mark.parametrize("path", figures.pages(), ids=lambda path: path.name)
def test_no_gain_is_claimed_without_its_cell(path: Path) -> None:
    assert path.stem in UNMEASURED or figures.unmarked(path.read_text("utf-8")) == []


def test_every_table_is_shown_or_cited() -> None:
    cited = {key for page in figures.pages() for key in figures.named(page.read_text("utf-8"))}
    held = {f"{path.stem}/{name}" for path in figures.DATA.glob("*.json") for name in json.loads(path.read_text())}
    assert held == cited


@pytest.mark.parametrize(
    ("prose", "right"),
    [
        ("1.5 points (-0.4 to 2.0) worse<!--x/t:ours,a-b,gain#2-4-->", True),  # the other way round
        ("-1.5 (-2.0 to 0.4)<!--x/t:ours,gain#2-4-->", True),
        ("1.5 (0.4 to 2.0)<!--x/t:ours,gain#2-4-->", False),
        ("65.5 % right<!--x/t:ours,gain#1-->", False),
        ("66 %<!--x/t:ours,gain#1-->", True),
        ("0.65<!--x/t:ours,gain#1-->", False),
        ("in 3 of 5, 0.7<!--x/t:ours,gain#1-->", True),
        ("0.06 ahead<!--x/t:ours,gain - theirs,gain#1-->", True),
        ("0.16 ahead<!--x/t:ours,gain - theirs,gain#1-->", False),
    ],
)
def test_a_figure_may_be_rounded_and_turned_but_not_differ(page: Path, prose: str, right: bool) -> None:
    page.write_text(f"It is\n{prose}.\n")
    assert (list(figures.findings(page)) == []) == right


def test_a_cell_that_is_not_there_is_an_error(page: Path) -> None:
    page.write_text("1<!--x/t:others,gain-->")
    with pytest.raises(KeyError, match="others"):
        list(figures.findings(page))


@pytest.mark.usefixtures("no_period_ends")
def test_a_table_is_taken_as_printed_and_written_into_the_page(page: Path) -> None:
    page.write_text("<!-- table: x/t -->\n\n| old |\n|---|\n| 1 |\n\nMore.\n")
    assert [finding.partition(":")[0] for finding in figures.findings(page)] == ["page.md"]
    figures.take(["-", "x/t"], "| no |\n|---|\n\nand\n\n| way | gain |\n|---|---|\n| a | 2 |\n", "make y")
    origin = f"Printed on {datetime.date.today()} by `make y`:\n\n"
    table = "| way | gain |\n|---|---|\n| a | 2 |\n\n"
    assert page.read_text() == f"<!-- table: x/t -->\n\n{origin}{table}More.\n"
    assert list(figures.findings(page)) == []


def test_a_page_may_show_some_rows_and_says_once_what_printed_them(page: Path) -> None:
    page.write_text("<!-- table: x/t rows th*,a-b -->\n\n<!-- table: x/t -->\n")
    figures.write()
    first, second = page.read_text().split("<!-- table: x/t -->")
    assert "Printed on 2026-11-24 by `make x`" in first
    assert "theirs" in first
    assert "ours" not in first
    assert "Printed" not in second
    assert "ours" in second
    page.write_text("<!-- table: x/t rows others -->\n")
    with pytest.raises(KeyError, match="no row others"):
        figures.write()


@pytest.mark.parametrize("path", sorted(figures.DATA.glob("*.json")), ids=lambda path: path.stem)
def test_every_table_has_a_day_and_a_command_that_is_there(path: Path) -> None:
    for table in json.loads(path.read_text("utf-8")).values():
        datetime.date.fromisoformat(table["taken"])
        check_command(table["command"])


@pytest.mark.parametrize(("script", "name"), [("draw_curve", "cost-curve"), ("draw_surface", "surface")])
def test_a_drawing_is_that_of_the_data(script: str, name: str, tmp_path: Path) -> None:
    runpy.run_path(str(figures.ROOT / "docs" / f"{script}.py"))["draw"](drawn := tmp_path / f"{name}.svg")
    kept = (figures.ROOT / "docs" / "figures" / f"{name}.svg").read_text("utf-8")
    if f"Matplotlib v{version('matplotlib')}," not in kept:
        pytest.skip("another matplotlib drew it")
    assert drawn.read_text("utf-8") == kept, f"python docs/{script}.py"


def test_a_figure_in_points_without_a_cell_is_found() -> None:
    assert figures.unmarked("It has 2 points<!--x/t:a,b-->, and\n3 points.\n\n`4 points`\n") == [", and\n3 points."]
    assert figures.unmarked("| a | 5 points | b |") == ["5 points"]
