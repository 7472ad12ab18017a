"""The page: one file, no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from focalroute.evaluate.report_page import plots
from focalroute.evaluate.report_page.drawings import CostQuality, Drawing, Heatmap

#: The page's sections in their order: what each is linked by, and its title.
SECTIONS = {
    "curve": "Cost and quality",
    "over-time": "Accuracy and cost over time",
    "errors": "Errors corrected",
    "when-right": "When exactly n members are right",
    "calibration": "Can the confidence be believed?",
    "rounds": "Who is asked, by round",
    "diversity": "How differently the endpoints fail",
    "tasks": "Who is asked, by task",
    "updates": "What the updates did",
    "figures": "All figures",
}
_WIDE = {"curve", "figures"}


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of text: the first cell of each names it.

    Attributes:
        strong: numbers of the rows that stand out.
        words: whether the last column holds sentences rather than figures.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: frozenset[int] = frozenset()
    words: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """One section.

    Attributes:
        caption: how to read it; without a drawing and a table, what is needed for them.
    """

    caption: str
    drawing: Drawing | None = None
    table: TextTable | None = None

    @property
    def empty(self) -> bool:
        """Whether it has neither."""
        return self.drawing is None and self.table is None


def tasks_section(drawing: Heatmap | None, left: int, missing: str) -> Section:
    """Describe whom which tasks ask, so many tasks ``left`` out; ``missing`` is said where there are none."""
    if drawing is None:
        return Section(missing)
    left_out = f" The {left} smallest tasks are left out." if left else ""
    return Section(
        "On how many percent of a task's queries each endpoint is asked. Columns of even shade: the topic makes no "
        f"difference to whom it asks.{left_out}",
        drawing,
    )


@dataclass(frozen=True, slots=True)
class Page:
    """All of a page; its texts are text, not markup.

    Attributes:
        facts: name -> value, the line below the title.
        lead: the one thing to know, in a sentence or two.
        sections: by their names, one of every name in `SECTIONS`.
    """

    title: str
    facts: Mapping[str, str]
    lead: str
    sections: Mapping[str, Section]


def html(page: Page) -> str:
    """The page as HTML.

    Raises:
        ConfigError: the extra ``report`` is not installed.
    """
    plots.check_extra()
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    body = "\n".join(_body(page))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def pngs(page: Page) -> Iterator[tuple[str, bytes]]:
    """(name, PNG) of every section that has a drawing.

    Raises:
        ConfigError: the extra ``report`` is not installed.
    """
    plots.check_extra()
    for name, section in page.sections.items():
        if section.drawing is not None:
            yield name, plots.as_png(section.drawing)


def _body(page: Page) -> Iterator[str]:
    yield f"<h1>{escape(page.title)}</h1>"
    listed = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in page.facts.items())
    yield f'<dl class="facts">{"".join(listed)}</dl>'
    yield f'<p class="lead">{escape(page.lead)}</p>'
    yield _section("curve", page.sections["curve"])
    yield '<div class="grid">'
    yield from (_section(name, page.sections[name]) for name in SECTIONS if name not in _WIDE)
    yield "</div>"
    yield _section("figures", page.sections["figures"])


def _section(name: str, section: Section) -> str:
    caption = f"<figcaption>{escape(section.caption)}</figcaption>"
    figure = f"<figure>\n{_drawn(name, section.drawing)}\n{caption}\n</figure>"
    kind = ' class="empty"' * section.empty
    return f'<section id="{name}"{kind}>\n<h2>{SECTIONS[name]}</h2>\n{figure}\n{_table(section.table)}</section>'


def _drawn(name: str, drawing: Drawing | None) -> str:
    if drawing is None:
        return ""
    if not isinstance(drawing, CostQuality):
        return plots.as_svg(name, drawing)
    wide, narrow = plots.as_svg(name, drawing), plots.as_svg(f"{name}-narrow", drawing, narrow=True)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _table(table: TextTable | None) -> str:
    if table is None:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "\n".join(_row(row, number in table.strong) for number, row in enumerate(table.rows))
    kind = ' class="words"' * table.words
    return (
        f'<div class="scroll" tabindex="0">\n<table{kind}>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n"
    )


def _row(cells: Sequence[str], strong: bool) -> str:
    data = "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
    kind = ' class="ours"' * strong
    return f'<tr{kind}><th scope="row">{escape(cells[0])}</th>{data}</tr>'
