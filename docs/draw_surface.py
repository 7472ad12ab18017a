"""Draws accuracy, dollars and seconds from docs/results/data/speed.json: ``python docs/draw_surface.py``."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm

__all__ = ["draw"]

DOCS = Path(__file__).resolve().parent
_TABLES = ("the-price-of-time", "the-price-of-time-2", "the-price-of-time-3")
_OURS = "lambda "


def draw(path: Path) -> None:
    """Write the picture as SVG: right answers over the median time, dots coloured by what they cost.

    A line joins ours at one cost weight, over the prices of time; squares are the other methods.
    """
    tables = json.loads((DOCS / "results" / "data" / "speed.json").read_text("utf-8"))
    plt.rcParams |= {"svg.hashsalt": "focalroute", "font.size": 9, "svg.fonttype": "path"}
    figure, every = plt.subplots(1, len(_TABLES), figsize=(9.2, 3.5), layout="constrained")
    coloured = {"cmap": "viridis", "norm": LogNorm(0.03, 1), "zorder": 3}
    for axes, table in zip(every, (tables[name] for name in _TABLES), strict=True):
        lines: dict[str, list[tuple[float, float, float]]] = {}
        for name, accuracy, *_, cost, half, _ in table["rows"]:
            weight = name.partition(",")[0] if name.startswith(_OURS) else name
            lines.setdefault(weight, []).append((float(half), 100 * float(accuracy), float(cost)))
        for name, points in lines.items():
            x, y, cost = zip(*points, strict=True)
            ours = name.startswith(_OURS)
            axes.plot(x, y, color="#b0b8c1", linewidth=1)
            dots = axes.scatter(x, y, c=cost, marker="o" if ours else "s", s=30 if ours else 55, **coloured)
            if not ours:
                axes.annotate(name, (x[0], y[0]), (6, 4), textcoords="offset points", fontsize=8)
        axes.set_title(table["head"][0], loc="left")
        axes.set_xlabel("median time (1 = best single)")
        axes.margins(x=0.25, y=0.12)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    every[0].set_ylabel("right answers, %")
    figure.colorbar(dots, ax=every, label="cost (1 = asking all)", format="%g")
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    draw(DOCS / "figures" / "surface.svg")
