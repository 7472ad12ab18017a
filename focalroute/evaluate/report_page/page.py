"""The page: one file, no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from focalroute.evaluate.report_page import plots
from focalroute.evaluate.report_page.drawings import CostQuality, Drawing

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
    drawn = "" if section.drawing is None else _drawn(name, section.drawing)
    empty = section.drawing is None and section.table is None
    caption = f"<figcaption>{escape(section.caption)}</figcaption>"
    figure = f"<figure>\n{drawn}\n{caption}\n</figure>"
    table = "" if section.table is None else _table(section.table)
    kind = ' class="empty"' if empty else ""
    return f'<section id="{name}"{kind}>\n<h2>{SECTIONS[name]}</h2>\n{figure}\n{table}</section>'


def _drawn(name: str, drawing: Drawing) -> str:
    if not isinstance(drawing, CostQuality):
        return plots.as_svg(name, drawing)
    wide, narrow = plots.as_svg(name, drawing), plots.as_svg(f"{name}-narrow", drawing, narrow=True)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _table(table: TextTable) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "\n".join(_row(row, number in table.strong) for number, row in enumerate(table.rows))
    kind = ' class="words"' if table.words else ""
    return (
        f'<div class="scroll" tabindex="0">\n<table{kind}>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n"
    )


def _row(cells: Sequence[str], strong: bool) -> str:
    data = "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
    kind = ' class="ours"' if strong else ""
    return f'<tr{kind}><th scope="row">{escape(cells[0])}</th>{data}</tr>'
