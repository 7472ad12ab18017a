"""Draws when the calls of an answer were sent and came, a row for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from focalroute.evaluate.report_page.drawings import AskTimeline, CallSpan, Timelines, Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from focalroute.evaluate.report_page.page import Palette

_LONGEST_NAME = 22
_THICK, _THIN = 0.55, 0.12


def draw_timelines(drawing: Timelines, figure: Figure, ink: Palette) -> None:
    """Draw one answer above the other, each on an axis of its own."""
    heights = [1.5 + len(ask.calls) for ask in drawing.asks]
    every = figure.subplots(len(drawing.asks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, ask in zip(every, drawing.asks, strict=True):
        _draw_ask(axes, ask, ink)
    every[-1].set_xlabel("seconds since it was asked")


def _draw_ask(axes: Axes, ask: AskTimeline, ink: Palette) -> None:
    for row, call in enumerate(ask.calls):
        _draw_call(axes, row, call, ink)
    axes.axvline(ask.ended, color=ink.ink, linewidth=1.2)
    axes.set_title(ask.title, loc="left")
    axes.set_yticks(range(len(ask.calls)), [call.endpoint[:_LONGEST_NAME] for call in ask.calls])
    axes.set_ylim(len(ask.calls) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.grid(False, axis="y")


def _draw_call(axes: Axes, row: int, call: CallSpan, ink: Palette) -> None:
    color = ink.ours if call.outcome == "done" else ink.second
    begun: Value = call.ended if call.sent is None else call.sent
    said: Value = begun if call.first_token is None else call.first_token
    for start, end, height, opacity in (
        (call.queued, begun, _THIN, 0.6),
        (begun, said, _THICK, 0.4),
        (said, call.ended, _THICK, 0.9),
    ):
        if start is not None and end is not None and end > start:
            axes.barh(row, end - start, height, start, color=color, alpha=opacity, linewidth=0)
    if call.outcome != "done":
        axes.annotate(f" {call.outcome}", (call.ended, row), va="center", fontsize=8, color=color)
