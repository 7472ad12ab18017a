"""From a drawing to SVG or PNG by matplotlib. The only module that imports it.

For a page colours are drawn as stand-ins that its style sheet resolves, so that one drawing serves light, dark and
paper; text stays text, in the page's own font. A PNG is drawn in the colours of the light page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from focalroute.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a drawing."""

    ink: str
    grid: str
    ours: str
    second: str
    third: str
    muted: str


Draw = Callable[["Figure", Palette], None]

_STAND_INS = Palette("#010101", "#010102", "#010103", "#010104", "#010105", "#010106")
_RESOLVED = Palette("currentColor", "var(--grid)", "var(--ours)", "var(--second)", "var(--third)", "var(--muted)")
_LIGHT = Palette("#1c2430", "#e3e7ec", "#1d5fd1", "#c2571a", "#0d7f5f", "#7d8794")
_RESOLVE = dict(zip(astuple(_STAND_INS), astuple(_RESOLVED), strict=True))
_PNG_DPI = 160
_STYLE: Any = {  # which keys there are is the version's own
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


def check() -> None:
    """Say so if nothing can be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError:
        raise ConfigError(
            "the page is drawn by matplotlib, which is not installed; pip install 'focalroute[report]'"
        ) from None


def svg(name: str, size: tuple[float, float], draw: Draw) -> str:
    """One drawing as an ``svg`` element: size in inches, ids that start with its name, colours by the style sheet."""
    bare = {"Date": None, "Creator": None, "Format": None, "Type": None}
    text = _drawn(size, draw, _STAND_INS, "none", format="svg", metadata=bare).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| (width|height)="[\d.]+pt"| version="1.1"', "", text, count=5)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub("|".join(_RESOLVE), lambda found: _RESOLVE[found[0]], text)
    text = re.sub(r"'DejaVu Sans', sans-serif|DejaVu Sans, sans-serif", "var(--font)", text)
    return text.replace("<svg", '<svg aria-hidden="true"', 1)


def png(size: tuple[float, float], draw: Draw) -> bytes:
    """One drawing on white."""
    return _drawn(size, draw, _LIGHT, "#ffffff", format="png", dpi=_PNG_DPI, metadata={"Software": None})


def _drawn(size: tuple[float, float], draw: Draw, ink: Palette, paper: str, **written: Any) -> bytes:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    style = {**_STYLE, "figure.facecolor": paper, "grid.color": ink.grid, **dict.fromkeys(inked, ink.ink)}
    file = io.BytesIO()
    with rc_context(style):
        figure = Figure(figsize=size, layout="constrained", dpi=72)
        draw(figure, ink)
        figure.savefig(file, **written)
    return file.getvalue()
