"""The page's plots, drawn by matplotlib as inline SVG. The only module that imports it.

Colours are drawn as stand-ins that the page's style sheet resolves, so that one drawing serves light, dark and paper.
Text stays text, in the page's own font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from focalroute.errors import ConfigError
from focalroute.evaluate.html.labels import Box, places
from focalroute.evaluate.html.numbers import BINS, Calibration, Corrected
from focalroute.evaluate.metrics import Score
from focalroute.evaluate.table import F64, I64

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Line", "check", "cost_quality", "errors", "matrix", "over_time", "reliability", "rounds", "when_right"]

_INK, _GRID, _OURS, _SECOND, _THIRD, _MUTED = (f"#01010{n}" for n in range(1, 7))
_STAND_INS = {
    _INK: "currentColor",
    _GRID: "var(--grid)",
    _OURS: "var(--ours)",
    _SECOND: "var(--second)",
    _THIRD: "var(--third)",
    _MUTED: "var(--muted)",
}
_STYLE: Any = {  # which keys there are is the version's own
    "svg.fonttype": "none",
    "svg.hashsalt": "focalroute",
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.7,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), _INK),
}
_LETTER = 4.6
_SIDES: Any = {1: "left", 0: "center", -1: "right"}
_LONGEST = 22
_WIDTH = 4.6
_MOST_NUMBERED = 16
_TICKS = tuple(lead * 10.0**power for power in range(-6, 2) for lead in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class Line:
    """A method's values along an axis."""

    name: str
    values: F64


_LINES = ((_OURS, "-", "o"), (_SECOND, "--", "s"), (_THIRD, ":", "^"))


def check() -> None:
    """Say so if plots cannot be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError:
        raise ConfigError("html: matplotlib is not installed; pip install 'focalroute[report]'") from None


def cost_quality(
    ours: Sequence[Score], methods: Sequence[Score], unattainable: frozenset[str], scored: str, *, narrow: bool
) -> str:
    """Operating points joined by a line, methods as labelled points, all with intervals; the cost axis is logarithmic.

    Args:
        ours: the operating points.
        methods: all others.
        unattainable: names of those that are drawn hollow.
        scored: what is on the other axis.
        narrow: for a phone.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        rows = (*sorted(ours, key=lambda row: row.cost_ratio), *sorted(methods, key=lambda row: -row.accuracy))
        free = not any(row.cost_ratio for row in rows)
        xs = [row.calls_per_query if free else row.cost_ratio for row in rows]
        curve = range(len(ours))
        for n, (x, row) in enumerate(zip(xs, rows, strict=True)):
            color = _OURS if n in curve else _MUTED
            _point(axes, x, row, color=color, markerfacecolor="none" if row.name in unattainable else color)
        axes.plot(xs[: len(ours)], [rows[n].accuracy for n in curve], color=_OURS, linewidth=2)
        _cost_axis(axes, sorted(xs), free)
        axes.set_ylabel(scored)
        axes.margins(x=0.08, y=0.06)
        figure.draw_without_rendering()  # so that it is known where the points are
        best = max(curve, key=lambda n: rows[n].accuracy)
        names = [row.name for row in rows]
        names[: len(ours)] = ["focalroute" * (n == best) for n in curve]
        _label(axes, xs, rows, names, curve)

    return _svg("cost-quality-narrow" if narrow else "cost-quality", (4.2, 5.4) if narrow else (8.6, 5.0), draw)


def over_time(accuracy: Sequence[Line], cost: F64, width: int, scored: str) -> str:
    """Rolling means over the test stream: accuracy above, focalroute's cost below."""

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        at = np.arange(len(cost)) + width
        for line, (color, dash, _) in zip(accuracy, _LINES, strict=False):
            above.plot(at, line.values, color=color, linestyle=dash, linewidth=1.6, label=line.name)
        above.set_ylabel(scored)
        _legend(above, len(accuracy))
        below.plot(at, cost, color=_OURS, linewidth=1.4)
        below.set_ylim(bottom=0)
        below.set_ylabel("cost ratio")
        below.set_xlabel(f"test queries so far (means of the last {width})")

    return _svg("over-time", (_WIDTH, 3.6), draw)


def rounds(names: Sequence[str], shares: F64) -> str:
    """Share of the queries on which each endpoint is asked, by round."""

    def draw(figure: Figure) -> None:
        axes, left = figure.subplots(), np.zeros(len(names))
        for number, share in enumerate(shares):
            opacity = max(0.95 - 0.35 * number, 0.15)
            label = f"round {number + 1}"
            axes.barh(range(len(names)), 100 * share, left=left, color=_OURS, alpha=opacity, label=label)
            left += 100 * share
        axes.set_yticks(range(len(names)), [_short(name) for name in names])
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set_xlabel("% of the queries")
        _legend(axes, len(shares))

    return _svg("rounds", (_WIDTH, 1.3 + 0.24 * len(names)), draw)


def matrix(name: str, rows: Sequence[str], columns: Sequence[str], values: F64, *, digits: int) -> str:
    """Values in [0, 1] as a grid, the largest the darkest, with numbers where they fit; NaN is left empty.

    Args:
        name: of the drawing.
        rows: their names.
        columns: theirs.
        values: (rows, columns).
        digits: of the numbers; 0: they are percent.
    """

    def draw(figure: Figure) -> None:
        from matplotlib.patches import Rectangle

        axes = figure.subplots()
        most = float(np.nanmax(values, initial=1e-9))
        for (y, x), value in np.ndenumerate(values):
            if np.isnan(value):
                continue
            shade = 0.7 * float(value) / most
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=_OURS, alpha=shade, linewidth=0))
            if len(columns) <= _MOST_NUMBERED:
                text = f"{value:.{digits}f}".removeprefix("0") if digits else f"{100 * value:.0f}"
                axes.text(x, y, text, ha="center", va="center", fontsize=7)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), [_short(one) for one in columns], rotation=60, ha="left")
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_yticks(range(len(rows)), [_short(one) for one in rows])
        axes.grid(False)
        axes.spines[:].set_visible(False)

    return _svg(name, (_WIDTH, 1.5 + 0.25 * len(rows)), draw)


def when_right(rows: I64, lines: Sequence[Line], scored: str) -> str:
    """What answers are worth where exactly n endpoints are right, above how many such rows there are."""

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        at = np.arange(len(rows))
        for line, (color, dash, marker) in zip(lines, _LINES, strict=False):
            style = {"color": color, "linestyle": dash, "marker": marker, "markersize": 4, "linewidth": 1.6}
            above.plot(at, line.values, label=line.name, **style)
        above.set_ylabel(scored)
        above.set_ylim(-0.03, 1.03)
        _legend(above, len(lines))
        below.bar(at, 100 * rows / rows.sum(), color=_MUTED, width=0.7)
        below.set_ylabel("% of rows")
        below.set_xlabel("endpoints whose recorded answer is right")
        below.xaxis.get_major_locator().set_params(integer=True)

    return _svg("when-right", (_WIDTH, 3.6), draw)


def errors(found: Mapping[str, Corrected]) -> str:
    """Errors of other methods that focalroute corrects, and right answers that it spoils."""

    def draw(figure: Figure) -> None:
        axes, at = figure.subplots(), np.arange(len(found))
        gained = [100 * one.corrected for one in found.values()]
        lost = [-100 * one.spoilt for one in found.values()]
        for values, color, label in ((gained, _OURS, "corrected"), (lost, _SECOND, "spoilt")):
            bars = axes.barh(at, values, color=color, label=label, height=0.55)
            axes.bar_label(bars, [f"{abs(value):.1f}" for value in values], padding=3, fontsize=8.5)
        axes.axvline(0, color=_INK, linewidth=0.8)
        axes.set_yticks(at, [_short(name) for name in found])
        axes.invert_yaxis()
        axes.margins(x=0.16)
        axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
        axes.grid(False, axis="y")
        axes.set_xlabel("% of the queries")
        _legend(axes, 2)

    return _svg("errors", (_WIDTH, 1.4 + 0.4 * len(found)), draw)


def reliability(found: Calibration, scored: str) -> str:
    """The reliability diagram: what answers were worth by confidence, above how many had it."""

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        above.plot([0, 1], [0, 1], color=_MUTED, linestyle="--", linewidth=1.2, label="as said")
        ours = {"color": _OURS, "marker": "o", "markersize": 4.5, "linewidth": 1.6}
        above.plot(found.confidence, found.accuracy, label="as it came", **ours)
        above.set_ylabel(scored)
        above.set_ylim(-0.03, 1.03)
        _legend(above, 2)
        below.bar(
            (np.arange(BINS) + 0.5) / BINS,
            100 * found.count / max(found.count.sum(), 1),
            color=_MUTED,
            width=0.8 / BINS,
        )
        below.set_ylabel("% of answers")
        below.set_xlabel("confidence")
        below.set_xlim(0, 1)

    return _svg("reliability", (_WIDTH, 3.6), draw)


def _point(axes: Axes, x: float, row: Score, **style: Any) -> None:
    low, high = row.accuracy_ci95
    around = [[max(row.accuracy - low, 0.0)], [max(high - row.accuracy, 0.0)]]
    axes.errorbar([x], [row.accuracy], yerr=around, marker="o", markersize=5, elinewidth=1, capsize=2.5, **style)


def _cost_axis(axes: Axes, costs: Sequence[float], free: bool) -> None:
    if free:
        axes.set_xlabel("calls per query (all of them free)")
        return
    least = next(cost for cost in costs if cost > 0)
    if costs[0] > 0:
        axes.set_xscale("log")
    else:  # something is free
        axes.set_xscale("symlog", linthresh=least)
    shown = [0.0] * (costs[0] <= 0) + [tick for tick in _TICKS if least / 1.5 <= tick <= costs[-1] * 1.5]
    axes.set_xticks(shown, [f"{100 * tick:g}" for tick in shown])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("cost, % of asking everybody")


def _label(axes: Axes, xs: Sequence[float], rows: Sequence[Score], names: Sequence[str], curve: Sequence[int]) -> None:
    """A label beside each of the rows that has a name; ``curve`` are the rows that are joined, in their order."""
    points = axes.transData.transform([(x, row.accuracy) for x, row in zip(xs, rows, strict=True)])
    ends = [axes.transData.transform([(x, end) for end in row.accuracy_ci95]) for x, row in zip(xs, rows, strict=True)]
    lines: list[Box] = [(x - 1, low, x + 1, high) for (x, low), (_, high) in ends]
    for first, second in pairwise(curve):
        along = points[first] + np.linspace(0, 1, 40)[:, None] * (points[second] - points[first])
        lines += [(x - 1, y - 1, x + 1, y + 1) for x, y in along]
    named = [n for n, name in enumerate(names) if name]
    found = places(
        [tuple(points[n]) for n in named],
        [_LETTER * len(names[n]) for n in named],
        height=10,
        lines=lines,
        within=axes.bbox.extents,
    )
    for n, place in zip(named, found, strict=True):
        ours = n in curve
        axes.annotate(
            names[n],
            (xs[n], rows[n].accuracy),
            tuple(axes.transData.inverted().transform((place.x, place.y))),
            ha=_SIDES[place.side],
            va="center",
            fontsize=8,
            color=_OURS if ours else _INK,
            fontweight="bold" if ours else "normal",
            arrowprops={"arrowstyle": "-", "color": _MUTED, "linewidth": 0.5, "shrinkB": 3} if place.far else None,
        )


def _legend(axes: Axes, columns: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2, handlelength=1.8)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _svg(name: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """One drawing as an ``svg`` element: sizes in inches, ids that start with its name, colours by the style sheet."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    written = io.StringIO()
    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained", dpi=72)
        draw(figure)
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| (width|height)="[\d.]+pt"| version="1.1"', "", svg, count=5)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub("|".join(_STAND_INS), lambda found: _STAND_INS[found[0]], svg)
    svg = re.sub(r"'DejaVu Sans', sans-serif|DejaVu Sans, sans-serif", "var(--font)", svg)
    return svg.replace("<svg", '<svg aria-hidden="true"', 1)
