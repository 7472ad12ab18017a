"""Which models the pool has: their sizes, what each learns from, for how long, and what it costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path

__all__ = ["FORMAT", "ROSTER", "TOPICS", "Recipe", "Roster", "Shape", "cached"]

#: Raise it where the same recipe would now train another model or write another file.
FORMAT = 1

#: The simulator's topics that are asked, equally often.
TOPICS = ("counting", "logic", "ordering")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model: residual width, blocks, attention heads, width of the feed-forward layer."""

    width: int
    blocks: int
    heads: int
    feed_forward: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model.

    Attributes:
        mix: topic -> how often, relative to the others, a question of it is learned from.
        steps: of training, with ``batch`` questions each, which are never seen again.
        seed: of the weights at the start and of the questions.
        usd_per_1m: price of a million tokens, in or out: by size.
    """

    name: str
    shape: Shape
    mix: Mapping[str, float]
    steps: int
    seed: int
    usd_per_1m: Decimal
    batch: int = 64
    rate: float = 3e-3


@dataclass(frozen=True, slots=True)
class Roster:
    """Who is in the pool at first; who of them is killed on the way; who joins later."""

    models: tuple[Recipe, ...]
    killed: str
    newcomer: Recipe


_SMALL, _DEEP, _WIDE = Shape(96, 2, 3, 320), Shape(96, 3, 3, 192), Shape(128, 2, 4, 384)

#: A third to half a million parameters each. With at most two thirds of this nobody had learned logic, on the questions
#: for validation; in a trial where the rate had not fallen yet, it took 150 steps.
ROSTER = Roster(
    models=(
        Recipe("ash", _SMALL, {"logic": 1}, 400, 1, Decimal("0.32"), batch=32),
        Recipe("birch", _SMALL, {"counting": 1}, 600, 2, Decimal("0.32")),
        Recipe("cedar", _DEEP, {"logic": 0.5, "ordering": 0.5}, 600, 3, Decimal("0.33")),
        Recipe("elm", _WIDE, {"counting": 0.7, "ordering": 0.3}, 700, 4, Decimal("0.51")),
        Recipe("fir", _WIDE, {"counting": 0.5, "logic": 0.5}, 600, 5, Decimal("0.51")),
    ),
    killed="fir",
    newcomer=Recipe("fir-2", _WIDE, {"counting": 0.6, "logic": 0.4}, 1000, 6, Decimal("0.51")),
)


def cached(recipe: Recipe) -> Path:
    """Where its model file is kept: outside the checkout, under a name that changes with the recipe."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "focalroute" / "tiny-pool"
    key = blake2b(f"{FORMAT} {TOPICS} {recipe!r}".encode(), digest_size=6).hexdigest()
    return cache / f"{recipe.name}-{key}.gguf"
