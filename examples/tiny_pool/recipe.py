"""The models of the pool: their sizes, what each is trained on, for how long, and its price."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path

__all__ = ["FORMAT", "ROSTER", "TOPICS", "Recipe", "Roster", "Shape", "cached"]

#: Raise it where the same recipe would now train another model or write another file.
FORMAT = 4

#: The simulator's topics that are asked, equally often.
TOPICS = ("counting", "logic")


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
        steps: of training, with ``batch`` questions each (twice as many where they are alone), never seen again.
        alone: how many steps come first without choices: the answer to a question is learned before its letter.
        seed: of the weights at the start and of the questions.
        usd_per_1m: price of a million tokens, in or out: by size.
    """

    name: str
    shape: Shape
    mix: Mapping[str, float]
    steps: int
    seed: int
    usd_per_1m: Decimal
    alone: int = 0
    batch: int = 32
    rate: float = 1.4e-3


@dataclass(frozen=True, slots=True)
class Roster:
    """The members at first; which of these is killed on the way; which model joins later."""

    models: tuple[Recipe, ...]
    killed: str
    newcomer: Recipe


_SMALL, _LARGE = Shape(96, 4, 6, 256), Shape(128, 4, 8, 256)

#: Half to three quarters of a million parameters each, chosen by the questions for validation.
ROSTER = Roster(
    models=(
        Recipe("ash", _SMALL, {"logic": 1}, 250, 1, Decimal("0.49"), alone=120),
        Recipe("birch", _SMALL, {"counting": 1}, 1200, 2, Decimal("0.49"), alone=600),
        Recipe("cedar", _SMALL, {"counting": 0.8, "logic": 0.2}, 650, 3, Decimal("0.49"), alone=350),
        Recipe("elm", _LARGE, {"counting": 0.4, "logic": 0.6}, 400, 4, Decimal("0.72"), alone=200),
        Recipe("fir", _LARGE, {"counting": 0.7, "logic": 0.3}, 500, 5, Decimal("0.72"), alone=250),
    ),
    killed="birch",
    newcomer=Recipe("birch-2", _SMALL, {"counting": 1}, 1200, 6, Decimal("0.49"), alone=600),
)


def cached(recipe: Recipe) -> Path:
    """The path of the model file: outside the checkout, under a name that changes with the recipe."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "focalroute" / "tiny-pool"
    key = blake2b(f"{FORMAT} {TOPICS} {recipe!r}".encode(), digest_size=6).hexdigest()
    return cache / f"{recipe.name}-{key}.gguf"
