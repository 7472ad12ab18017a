"""Makes the page: one HTML file without scripts or external resources, with drawings by matplotlib.

The drawings are SVG. matplotlib draws them in placeholder colours, which are then replaced by variables of the page's
style sheet, so that one drawing serves light, dark and print. Their text stays text, in the page's font. PNGs have the
colours of the light page.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from focalroute.core.errors import needing
from focalroute.evaluate.report_page import drawings
from focalroute.evaluate.report_page.cost_curve import Palette, draw_cost_quality, short_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_PLACEHOLDERS = Palette("#010101", "#010102", "#010103", "#010104", "#010105", "#010106")
_VARIABLES = Palette("currentColor", "var(--grid)", "var(--ours)", "var(--second)", "var(--third)", "var(--muted)")
_LIGHT = Palette("#1c2430", "#e3e7ec", "#1d5fd1", "#c2571a", "#0d7f5f", "#7d8794")
_VARIABLE_OF = dict(zip(astuple(_PLACEHOLDERS), astuple(_VARIABLES), strict=True))
_PNG_DPI = 160
_STYLE: Any = {  # the valid keys depend on matplotlib's version
    "svg.fonttype": "none",
    "svg.hashsalt": "focalroute",
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 8.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.7,
}


def check_extra() -> None:
    """Check that matplotlib is installed.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with needing("the page needs matplotlib, which draws it", "report"):
        import matplotlib  # noqa: F401 - only checks that it is installed


_SIZE = 4.6, 3.6  # inches; some drawings choose another height
_LARGEST_NUMBER, _SMALLEST_NUMBER = 7, 4  # font sizes of a cell's number, points
_NUMBER_SHARE = 0.8  # share of a cell's width for its number
_SLANT = 60  # of column names, degrees
_LONGEST_UNBROKEN = 24  # characters; a longer name of a row may have line breaks
_COST_LABELS: dict[drawings.CostAxis, str] = {"share": "cost ratio", "usd": "USD / 1,000", "calls": "calls"}
_MOST_LABELLED_EVENTS = 12
_THICK, _THIN = 0.55, 0.12  # heights of a call's bar


def as_svg(name: str, drawing: drawings.Drawing, *, narrow: bool = False) -> str:
    """Return a drawing as an ``svg`` element, with colours from the style sheet.

    Args:
        name: prefix of all ids in the drawing.
        drawing: the drawing.
        narrow: whether to draw for a phone, which only changes `CostQuality`.
    """
    no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    text = _render(drawing, _PLACEHOLDERS, "none", narrow=narrow, format="svg", metadata=no_metadata).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| (width|height)="[\d.]+pt"| version="1.1"', "", text, count=5)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub("|".join(_VARIABLE_OF), lambda found: _VARIABLE_OF[found[0]], text)
    text = re.sub(r"'DejaVu Sans', sans-serif|DejaVu Sans, sans-serif", "var(--font)", text)
    return text.replace("<svg", '<svg aria-hidden="true"', 1)


def _render(drawing: drawings.Drawing, ink: Palette, paper: str, *, narrow: bool = False, **saving: Any) -> bytes:
    """Draw in these colours on a background; ``saving``: the arguments of matplotlib's savefig."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    in_ink = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    style = {**_STYLE, "figure.facecolor": paper, "grid.color": ink.grid, **dict.fromkeys(in_ink, ink.ink)}
    file, size = io.BytesIO(), _SIZE
    if isinstance(drawing, drawings.CostQuality):
        size = (4.2, 5.4) if narrow else (8.6, 5.0)
    with rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser uses its own fonts
        figure = Figure(figsize=size, layout="constrained", dpi=72)
        _DRAW[type(drawing)](drawing, figure, ink)
        figure.savefig(file, **saving)
    return file.getvalue()


def _slanted_height(names: Sequence[str]) -> float:
    """Return the height of slanted column names, in inches."""
    longest = max(_width(name, _STYLE["xtick.labelsize"]) for name in short_names(names))
    return longest * math.sin(math.radians(_SLANT)) / 72


def _width(text: str, size: float) -> float:
    """Return the width of a text, in points."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=size).get_extents().width)


def _over_time(drawing: drawings.OverTime, figure: Figure, ink: Palette) -> None:
    """Draw rolling means: quality above, cost and seconds below."""
    figure.set_figheight(4.6)
    measured = {_COST_LABELS[drawing.axis]: drawing.cost, "seconds": drawing.seconds}
    above, *below = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1, 1))
    for line, (color, dash, _) in zip(drawing.lines, _lines(ink), strict=False):
        above.plot(drawing.at, _floats(line.values), color=color, linestyle=dash, linewidth=1.6, label=line.name)
    above.set_ylabel(drawing.scored)
    _legend(above, len(drawing.lines))
    for axes, (name, values) in zip(below, measured.items(), strict=True):
        axes.plot(drawing.at, _floats(values), color=ink.ours, linewidth=1.4)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(name)
    below[-1].set_xlabel(f"{drawing.along} (means of the last {drawing.width})")
    number = 0
    for mark in drawing.marks:
        number += mark.found
        color, dash = ink.muted, ":"
        if mark.found:
            color, dash = ink.second, "-"
        for axes in (above, *below):
            axes.axvline(mark.at, color=color, linestyle=dash, linewidth=1)
        if mark.found and number <= _MOST_LABELLED_EVENTS:
            place: Any = {"transform": above.get_xaxis_transform(), "va": "top", "color": color, "fontsize": 8}
            above.text(mark.at, 1, f" {number}", **place)


def _rounds(drawing: drawings.AskedByRound, figure: Figure, ink: Palette) -> None:
    """Draw a bar for each endpoint, with a paler part for each later round."""
    figure.set_figheight(1.3 + 0.24 * len(drawing.names))
    axes, left = figure.subplots(), np.zeros(len(drawing.names))
    for number, share in enumerate(drawing.shares):
        opacity = max(0.95 - 0.35 * number, 0.15)
        percent = 100 * np.array(share)
        label = f"round {number + 1}"
        axes.barh(range(len(left)), percent, left=left, color=ink.ours, alpha=opacity, label=label)
        left += percent
    axes.set_yticks(range(len(left)), short_names(drawing.names))
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel("% of the queries")
    _legend(axes, min(len(drawing.shares), 3), end="right")


def _heatmap(drawing: drawings.Heatmap, figure: Figure, ink: Palette) -> None:
    """Draw larger values darker, with numbers if they fit; cells without a value are empty."""
    figure.set_figheight(max(1.5, 0.8 + _slanted_height(drawing.columns)) + 0.25 * len(drawing.rows))
    axes = figure.subplots()
    values = np.array([_floats(row) for row in drawing.values])
    cells = [(x, y, float(value)) for (y, x), value in np.ndenumerate(values) if not np.isnan(value)]
    largest = float(np.nanmax(values, initial=1e-9))
    for x, y, value in cells:
        axes.bar(x, 1, 1, y - 0.5, color=ink.ours, alpha=0.7 * value / largest, linewidth=0)
    axes.set_xlim(-0.5, len(drawing.columns) - 0.5)
    axes.set_ylim(len(drawing.rows) - 0.5, -0.5)
    axes.set_xticks(range(len(drawing.columns)), short_names(drawing.columns), rotation=_SLANT, ha="left")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_yticks(range(len(drawing.rows)), short_names(drawing.rows))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    figure.draw_without_rendering()  # fixes the columns' width
    cell_width = axes.get_window_extent().width / figure.dpi * 72 / len(drawing.columns)  # points
    axes.tick_params(axis="x", labelsize=min(_STYLE["xtick.labelsize"], cell_width * math.sin(math.radians(_SLANT))))
    texts = [_number(value, drawing.digits) for _, _, value in cells]
    sizes = {}
    for text in set(texts):
        sizes[text] = _LARGEST_NUMBER * min(1.0, _NUMBER_SHARE * cell_width / _width(text, _LARGEST_NUMBER))
    if min(sizes.values(), default=0.0) >= _SMALLEST_NUMBER:
        for (x, y, _), text in zip(cells, texts, strict=True):
            axes.text(x, y, text, ha="center", va="center", fontsize=sizes[text])


def _number(value: float, digits: int) -> str:
    """Format a cell's value with this many decimals; 0: as whole percent."""
    return f"{value:.{digits}f}".removeprefix("0") if digits else f"{100 * value:.0f}"


def _when_right(drawing: drawings.WhenRight, figure: Figure, ink: Palette) -> None:
    """Draw the worth of answers when exactly n members are right, above the share of such queries."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    rows = np.array(drawing.rows)
    at = np.arange(len(rows))
    for line, (color, dash, marker) in zip(drawing.lines, _lines(ink), strict=False):
        style = {"color": color, "linestyle": dash, "marker": marker, "markersize": 4, "linewidth": 1.6}
        above.plot(at, _floats(line.values), label=line.name, **style)
    above.set_ylabel(drawing.scored)
    above.set_ylim(-0.03, 1.03)
    _legend(above, len(drawing.lines))
    below.bar(at, 100 * rows / max(rows.sum(), 1), color=ink.muted, width=0.7)
    below.set_ylabel("% of queries")
    below.set_xlabel(drawing.members)
    below.xaxis.get_major_locator().set_params(integer=True)


def _errors(drawing: drawings.ErrorComparison, figure: Figure, ink: Palette) -> None:
    """Draw the errors of other methods that focalroute corrects, and the right answers that it spoils."""
    figure.set_figheight(1.4 + 0.4 * len(drawing.found))
    axes, at = figure.subplots(), np.arange(len(drawing.found))
    gained = [100 * one.corrected for one in drawing.found.values()]
    lost = [-100 * one.spoilt for one in drawing.found.values()]
    for values, color, label in ((gained, ink.ours, "corrected"), (lost, ink.second, "spoilt")):
        bars = axes.barh(at, values, color=color, label=label, height=0.55)
        labels = [f"{abs(value):.1f}" if value else "" for value in values]  # a label of 0 would be on the other bar
        axes.bar_label(bars, labels, padding=3, fontsize=8.5)
    axes.axvline(0, color=ink.ink, linewidth=0.8)
    axes.set_yticks(at, short_names(list(drawing.found)))
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.grid(False, axis="y")
    axes.set_xlabel("% of the queries")
    _legend(axes, 2, end="right")


def _calibration(drawing: drawings.Calibration, figure: Figure, ink: Palette) -> None:
    """Draw the reliability diagram: the worth of answers by confidence, above the share of such answers."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot([0, 1], [0, 1], color=ink.muted, linestyle="--", linewidth=1.2, label="calibrated")
    confidence, quality, count = _floats(drawing.confidence), _floats(drawing.quality), np.array(drawing.count)
    above.plot(confidence, quality, color=ink.ours, linewidth=1.6, label="measured")
    for bins, face in ((count >= drawings.FEW_IN_BIN, ink.ours), (count < drawings.FEW_IN_BIN, "none")):
        above.plot(confidence[bins], quality[bins], "o", color=ink.ours, markersize=4.5, markerfacecolor=face)
    above.set_ylabel(drawing.scored)
    above.set_ylim(-0.03, 1.03)
    _legend(above, 2)
    middle = (np.arange(drawings.BINS) + 0.5) / drawings.BINS
    below.bar(middle, 100 * count / max(count.sum(), 1), color=ink.muted, width=0.8 / drawings.BINS)
    below.set_ylabel("% of answers")
    below.set_xlabel("confidence")
    below.set_xlim(0, 1)


def _histories(drawing: drawings.VersionHistories, figure: Figure, ink: Palette) -> None:
    """Draw one small plot for each value, two in a row."""
    rows = -(-len(drawing.lines) // 2)
    figure.set_figheight(0.5 + 1.15 * rows)
    every = figure.subplots(rows, 2, sharex=True, squeeze=False)
    for axes, line in zip(every.flat, drawing.lines, strict=False):
        axes.plot(drawing.versions, _floats(line.values), color=ink.ours, marker="o", markersize=3.5, linewidth=1.4)
        axes.set_title(line.name, loc="left")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(y=0.15)
    for axes in list(every.flat)[len(drawing.lines) :]:
        axes.set_visible(False)
    for axes in every[-1]:
        axes.set_xlabel("version")


def _timelines(drawing: drawings.Timelines, figure: Figure, ink: Palette) -> None:
    """Draw when the calls of answers were sent and ended, each answer on its own axis."""
    figure.set_figheight(0.6 + sum(0.6 + 0.26 * len(ask.calls) for ask in drawing.asks))
    heights = [1.5 + len(ask.calls) for ask in drawing.asks]
    every = figure.subplots(len(drawing.asks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, ask in zip(every, drawing.asks, strict=True):
        for row, call in enumerate(ask.calls):
            _call(axes, row, call, ink)
        axes.axvline(ask.ended, color=ink.ink, linewidth=1.2)
        axes.set_title(ask.title, loc="left")
        axes.set_yticks(range(len(ask.calls)), short_names([call.endpoint for call in ask.calls]))
        axes.set_ylim(len(ask.calls) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=6)
        axes.grid(False, axis="y")
    every[-1].set_xlabel("seconds since it was asked")


def _call(axes: Axes, row: int, call: drawings.CallSpan, ink: Palette) -> None:
    """Draw a call: thin until it was sent, pale until its first token, then full."""
    color, sent, first_token = ink.ours, call.sent, call.first_token
    if call.outcome != "done":
        color = ink.second
        axes.annotate(f" {call.outcome}", (call.ended, row), va="center", fontsize=8, color=color)
    if sent is None:
        sent = call.ended
    if first_token is None:
        first_token = sent
    for start, end, height, opacity in (
        (call.queued, sent, _THIN, 0.6),
        (sent, first_token, _THICK, 0.4),
        (first_token, call.ended, _THICK, 0.9),
    ):
        if end > start:
            axes.barh(row, end - start, height, start, color=color, alpha=opacity, linewidth=0)


_DRAW: dict[type, Callable[[Any, Figure, Palette], None]] = {
    drawings.Calibration: _calibration,
    drawings.CostQuality: draw_cost_quality,
    drawings.ErrorComparison: _errors,
    drawings.Heatmap: _heatmap,
    drawings.VersionHistories: _histories,
    drawings.OverTime: _over_time,
    drawings.AskedByRound: _rounds,
    drawings.Timelines: _timelines,
    drawings.WhenRight: _when_right,
}


def _lines(ink: Palette) -> tuple[tuple[str, str, str], ...]:
    """Colour, dash and marker of the first, second and third line."""
    return (ink.ours, "-", "o"), (ink.second, "--", "s"), (ink.third, ":", "^")


def _floats(values: Sequence[float | None]) -> Any:
    return np.array(values, np.float64)  # None becomes NaN, which is drawn as a gap


def _legend(axes: Axes, columns: int, *, end: Literal["left", "right"] = "left") -> None:
    """Put the legend above the axes, at this end."""
    above: Any = {"loc": f"lower {end}", "bbox_to_anchor": (float(end == "right"), 1)}
    axes.legend(**above, ncols=columns, borderaxespad=0.2, handlelength=1.8)


#: The page's sections in order: anchor -> title.
SECTIONS = {
    "curve": "Cost and quality",
    "over-time": "Accuracy, cost and seconds over time",
    "errors": "Errors corrected",
    "when-right": "When exactly n members are right",
    "calibration": "Can the confidence be believed?",
    "rounds": "Who is asked, by round",
    "timeline": "Where the time goes",
    "diversity": "How differently the endpoints fail",
    "tasks": "Who is asked, by task",
    "updates": "What the updates did",
    "figures": "All figures",
}
_WIDE = {"curve", "figures"}


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table; the first cell of each row is its heading.

    Attributes:
        columns: the headings of the columns.
        rows: the rows' cells.
        strong: indices of highlighted rows.
        words: whether the last column has sentences, not figures.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: frozenset[int] = frozenset()
    words: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """One section.

    Attributes:
        caption: how to read the section; without drawing and table, which data they need.
        drawing: the drawing, if there is one.
        table: the table, if there is one.
    """

    caption: str
    drawing: drawings.Drawing | None = None
    table: TextTable | None = None

    @property
    def empty(self) -> bool:
        """Whether it has neither drawing nor table."""
        return self.drawing is None and self.table is None


def tasks_section(drawing: drawings.Heatmap | None, left: int, missing: str) -> Section:
    """Make the section on which endpoints are asked by task.

    Args:
        drawing: the drawing; None: there are no tasks.
        left: number of tasks left out.
        missing: the section's text if there are no tasks.
    """
    if drawing is None:
        return Section(missing)
    left_out = ""
    if left:
        left_out = f" The {left} smallest tasks are left out."
    return Section(
        "The percentage of a task's queries on which each endpoint is asked. If a column has the same "
        f"shade throughout, the task makes no difference to whether that endpoint is asked.{left_out}",
        drawing,
    )


@dataclass(frozen=True, slots=True)
class Page:
    """The contents of a page; its texts are plain text, not markup.

    Attributes:
        title: the title.
        facts: name -> value, for the line below the title.
        lead: the main result, in a sentence or two.
        sections: name -> section, for every name in `SECTIONS`.
    """

    title: str
    facts: Mapping[str, str]
    lead: str
    sections: Mapping[str, Section]


def html(page: Page) -> str:
    """Return the page as HTML.

    Raises:
        ConfigError: the extra ``report`` is not installed.
    """
    check_extra()
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    body = "\n".join(_body(page))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def pngs(page: Page) -> Iterator[tuple[str, bytes]]:
    """Yield (name, PNG) for every section with a drawing."""
    no_metadata = {"Software": None}
    for name, section in page.sections.items():
        if section.drawing is not None:
            yield name, _render(section.drawing, _LIGHT, "#ffffff", format="png", dpi=_PNG_DPI, metadata=no_metadata)


def _body(page: Page) -> Iterator[str]:
    yield f"<h1>{escape(page.title)}</h1>"
    facts = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in page.facts.items())
    yield f'<dl class="facts">{"".join(facts)}</dl>'
    yield f'<p class="lead">{escape(page.lead)}</p>'
    yield _section("curve", page.sections["curve"])
    yield '<div class="grid">'
    yield from (_section(name, page.sections[name]) for name in SECTIONS if name not in _WIDE)
    yield "</div>"
    yield _section("figures", page.sections["figures"])


def _section(name: str, section: Section) -> str:
    caption = f"<figcaption>{escape(section.caption)}</figcaption>"
    figure = f"<figure>\n{_drawing(name, section.drawing)}\n{caption}\n</figure>"
    kind = ' class="empty"' if section.empty else ""
    return f'<section id="{name}"{kind}>\n<h2>{SECTIONS[name]}</h2>\n{figure}\n{_table(section.table)}</section>'


def _drawing(name: str, drawing: drawings.Drawing | None) -> str:
    if drawing is None:
        return ""
    if not isinstance(drawing, drawings.CostQuality):
        return as_svg(name, drawing)
    wide, narrow = as_svg(name, drawing), as_svg(f"{name}-narrow", drawing, narrow=True)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _table(table: TextTable | None) -> str:
    if table is None:
        return ""
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
    heading = ' class="long"' if len(cells[0]) > _LONGEST_UNBROKEN else ""
    return f'<tr{kind}><th scope="row"{heading}>{escape(cells[0])}</th>{data}</tr>'
