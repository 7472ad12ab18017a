"""The figures of the pages are those of the data, and a wrong one is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import figures

TABLE = {
    "taken": "as printed",
    "head": ["way", "stream", "gain"],
    "rows": [["ours", "a b", "0.656, -1.5 (-2.0 to +0.4)"], ["theirs", "a b", "0.6"]],
}


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


@pytest.mark.parametrize("name", ["README.md", "docs/results/index.md"])
def test_no_gain_is_claimed_on_the_first_pages_without_its_cell(name: str) -> None:
    assert figures.unmarked((figures.ROOT / name).read_text("utf-8")) == []


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


def test_a_table_is_taken_as_printed_and_written_into_the_page(page: Path) -> None:
    page.write_text("<!-- table: x/t -->\n\n| old |\n|---|\n| 1 |\n\nMore.\n")
    assert [finding.partition(":")[0] for finding in figures.findings(page)] == ["page.md"]
    figures.take(["-", "x/t"], "| no |\n|---|\n\nand\n\n| way | gain |\n|---|---|\n| a | 2 |\n")
    assert page.read_text() == "<!-- table: x/t -->\n\n| way | gain |\n|---|---|\n| a | 2 |\n\nMore.\n"
    assert list(figures.findings(page)) == []


def test_a_figure_in_points_without_a_cell_is_found() -> None:
    assert figures.unmarked("It has 2 points<!--x/t:a,b-->, and\n3 points.\n\n`4 points`\n") == [", and\n3 points."]
    assert figures.unmarked("| a | 5 points | b |") == ["5 points"]
