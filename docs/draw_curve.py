"""Draws the README's picture from docs/results/data/quality.json: ``python docs/draw_curve.py``."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

__all__ = ["draw", "points"]

DOCS = Path(__file__).resolve().parent
#: Of the table's first column, mmlupro12 cut once: what stands for it in the picture.
_BASELINES = {
    "best-single-hindsight": "best single, in hindsight",
    "cascade": "cascade",
    "random": "a model at random",
    "carrot-knn": "nearest neighbours",
    "plurality": "plurality of all twelve",
    "log-linear-online": "fusion of all twelve",
}
#: Their names stand to the left of their points.
_LEFT = {"best-single-hindsight", "plurality", "log-linear-online"}


def points() -> dict[str, tuple[float, float]]:
    """Accuracy and cost of every method on mmlupro12, as the table has them."""
    table = json.loads((DOCS / "results" / "data" / "quality.json").read_text("utf-8"))["baselines"]
    found = {}
    for name, first, *_ in table["rows"]:
        if "@" in first:
            accuracy, cost = first.strip("*").split(" @ ")
            found[name] = (float(accuracy), float(cost))
    return found


def draw(path: Path) -> None:
    """Write the picture as SVG."""
    found = points()
    plt.rcParams |= {"svg.hashsalt": "focalroute", "font.size": 10, "svg.fonttype": "path"}
    figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    ours = sorted((cost, 100 * right) for name, (right, cost) in found.items() if name.startswith("focalroute"))
    axes.plot(*zip(*ours, strict=True), "o-", color="#d1495b", label="focalroute")
    above = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
    axes.annotate("focalroute", ours[-2], **above, color="#d1495b", weight="bold")
    for name, shown in _BASELINES.items():
        right, cost = found[name]
        axes.plot(cost, 100 * right, "o", color="#54708c")
        left = name in _LEFT
        place, side = ((-8, -2), "right") if left else ((8, -9), "left")
        axes.annotate(shown, (cost, 100 * right), place, textcoords="offset points", ha=side, color="#54708c")
    axes.set(xscale="log", xlim=(0.03, 1.15), ylim=(45, 69))
    axes.set(xlabel="cost (1 = asking all twelve models)", ylabel="right answers, %")
    axes.set_xticks((ticks := (0.05, 0.1, 0.2, 0.5, 1.0)), [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_title("12 recorded models on 2,064 questions of MMLU-Pro", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    draw(DOCS / "figures" / "cost-curve.svg")
