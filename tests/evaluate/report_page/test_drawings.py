"""What the drawings of a page aggregate, and where their labels are placed."""

from __future__ import annotations

import re
import warnings
from itertools import pairwise

import numpy as np
import pytest

from focalroute.evaluate.report_page.cost_curve import place_labels, short_names
from focalroute.evaluate.report_page.drawings import (
    AskedByRound,
    AskTimeline,
    CallSpan,
    CostAxis,
    CostQuality,
    ErrorComparison,
    ErrorCorrection,
    Heatmap,
    MethodPoint,
    Timelines,
    measure_over_time,
    rolling_means,
    thinned_indices,
)
from focalroute.evaluate.report_page.page import as_svg


def test_a_long_stream_is_thinned_to_what_can_be_told_apart() -> None:
    assert thinned_indices(3).tolist() == [0, 1, 2]
    kept = thinned_indices(5000)
    assert (kept[0], kept[-1], len(kept)) == (0, 4999, 400)
    methods, cost, seconds = {"x": np.arange(2000.0)}, np.zeros(1801), np.zeros(2000)
    drawn = measure_over_time(methods, cost, seconds, (), scored="accuracy", axis="share", along="queries")
    assert (drawn.width, drawn.at[0], drawn.at[-1], len(drawn.at)) == (200, 200, 2000, 400)
    (line,) = drawn.lines
    assert (line.values[0], line.values[-1]) == (99.5, 1899.5)
    assert len(drawn.cost) == len(drawn.seconds) == 400


def test_a_rolling_mean_has_a_full_window_everywhere() -> None:
    assert rolling_means(np.arange(5.0), 3).tolist() == [1, 2, 3]
    assert rolling_means(np.arange(3.0), 1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("heaps", [1, 4])
def test_labels_keep_off_points_and_each_other_and_stay_inside(heaps: int) -> None:
    """Heaps of five points, the first in a corner, with lines through them."""
    heap = [(188.0, 100.0), (190.0, 101.0), (186.0, 99.0), (189.0, 103.0), (187.0, 96.0)]
    points = [(x - 12 * n, y) for n in range(heaps) for x, y in heap]
    widths = [40.0, 50.0, 30.0, 60.0, 45.0] * heaps
    lines = [(x - 1, 60.0, x + 1, 140.0) for x, _ in points]
    found = place_labels(points, widths, height=10, lines=lines, within=(0, 0, 200, 200))
    boxes = [place.box(width, 10) for place, width in zip(found, widths, strict=True)]
    for n, (left, bottom, right, top) in enumerate(boxes):
        assert left >= 0
        assert right <= 200
        assert not any(left < x < right and bottom < y < top for x, y in points)
        assert not any(left < c and a < right and bottom < d and b < top for a, b, c, d in boxes[n + 1 :])


def test_long_names_in_any_script_leave_the_legend_on_the_drawing() -> None:
    """The third round stood beside it; and matplotlib, which only measures these names, warned of each letter."""
    names = tuple(f"模型{'W' * 30}{n}" for n in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = as_svg("rounds", AskedByRound(names, ((0.5,) * 3, (0.2,) * 3, (0.1,) * 3)))
    last, width = re.search(r'x="([\d.]+)"[^>]*>round 3<', drawn), re.search(r'viewBox="0 0 ([\d.]+)', drawn)
    assert last is not None
    assert width is not None
    assert float(last[1]) + 30 < float(width[1])


def test_models_of_one_owner_are_told_apart() -> None:
    """They were all together/meta-llama/L..."""
    names = ["openai/gpt-5-mini", "together/meta-llama/Llama-3.3-70B-Instruct-Turbo", "x" * 30 + "/"]
    assert short_names([*names, names[1]]) == [
        "openai/gpt-5-mini", "Llama-3.3-70B-Instruc…", "x" * 21 + "…", "Llama-3.3-70B-Instruc…",
    ]  # fmt: skip


def test_names_that_begin_alike_are_told_apart() -> None:
    """One model of two services, and two of one family whose names differ late."""
    model = "Llama-3.3-70B-Instruct-Turbo"
    assert short_names([f"together/{model}", f"deepinfra/{model}", "swift"]) == [
        "together/Llama-3.3-70…", "deepinfra/Llama-3.3-7…", "swift",
    ]  # fmt: skip
    family = ["qwen/Qwen3-235B-A22B-Instruct-2507", "qwen/Qwen3-235B-A22B-Instruct-2601"]
    assert short_names(family) == ["…507", "…601"]


def test_nothing_spoilt_has_no_figure_on_the_bar_of_what_is_corrected() -> None:
    drawn = as_svg("errors", ErrorComparison({"a": ErrorCorrection(0.25, 0.0, 0.5, 40)}))
    assert ">25.0<" in drawn
    assert ">0.0<" not in drawn


@pytest.mark.parametrize("axis", ["usd", "share"])
def test_costs_that_are_much_the_same_have_their_figures_on_the_axis(axis: CostAxis) -> None:
    """There was none, as no round figure lies between them."""
    dots = [MethodPoint(name, cost, 0.8, 0.7, 0.9) for name, cost in (("a", 0.00662), ("b", 0.007158))]
    drawn = as_svg("curve", CostQuality(dots, "accuracy", axis))
    for figure in ("0.00662", "0.00716") if axis == "usd" else ("0.662", "0.716"):
        assert f">{figure}<" in drawn


def test_figures_below_a_quick_answer_keep_off_each_other() -> None:
    call = CallSpan("a", 0.0, 0.0005, None, 0.0014, "done")
    drawn = as_svg("timelines", Timelines((AskTimeline("median", (call,), 0.00167),)))
    assert 3 < len(re.findall(r">0\.\d{4}<", drawn)) < 8


def test_long_names_above_a_grid_leave_its_rows_their_height() -> None:
    """The layout gave up, with a warning."""
    names = tuple(f"{n}{'m' * 30}" for n in range(12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = as_svg("tasks", Heatmap(("one", "two"), names, ((0.5,) * 12,) * 2, 0))
    one, two = (float(at) for at in re.findall(r' y="([\d.]+)"[^>]*>(?:one|two)<', drawn))
    assert two - one > 15


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "numbered"), [(2, True), (12, True), (16, False)])
def test_numbers_of_a_grid_keep_off_each_other(columns: int, numbered: bool) -> None:
    """Beneath twelve long names a cell is narrower than its number was."""
    names = tuple(f"{n}{'a' * 30}" for n in range(columns))
    drawn = as_svg("tasks", Heatmap(names, names, ((1.0,) * columns,) * columns, 0))
    found = re.findall(r'font-size: ([\d.]+)px[^>]* x="([\d.]+)"[^>]*>100<', drawn)
    assert bool(found) == numbered
    digit = 0.64  # of a letter's size, in a wide font
    for (size, at), (_, following) in pairwise(found[:columns]):
        assert float(following) - float(at) > 1.1 * 3 * digit * float(size)
