"""Features of a query's text: hashed byte n-grams, the same on every machine and in every process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError

#: Width of the text features that an `Observer` uses by default.
TEXT_FEATURES = 256

#: Maps a query's text to a vector, always of the same width.
Embedder = Callable[[str], ArrayLike]

#: Of a longer text only the first and the last so many characters are read.
MAX_CHARACTERS = 4096

#: The most features that any embedder may give: a memory of 4,096 texts holds as many of them.
MOST_FEATURES = 8192

# Odd multipliers, one for each place in an n-gram.
_PLACES = (
    np.uint32(0x9E3779B1),
    np.uint32(0x85EBCA77),
    np.uint32(0xC2B2AE3D),
    np.uint32(0x27D4EB2F),
    np.uint32(0x165667B1),
)
# Mix the bits of an n-gram's hash.
_MIX, _FAR, _NEAR = np.uint32(0x2C1B3C6D), np.uint32(15), np.uint32(13)


def text_features(text: str, width: int = TEXT_FEATURES) -> NDArray[np.float32]:
    """Signed hashing of all byte trigrams and 5-grams of the UTF-8 text, ASCII letters lowered; Euclidean norm 1.

    Weinberger et al. (2009), Feature hashing for large scale multitask learning: each n-gram adds +1 or -1, both the
    place and the sign taken from its hash, so that collisions cancel in expectation. Of each sum the logarithm of one
    more counts: an n-gram that comes ten times says little more than one that comes twice. Time is linear in the
    length, and bounded.

    Args:
        text: any string; of more than 2 x `MAX_CHARACTERS` characters the middle is left out.
        width: the number of features.

    Returns:
        float32 (width,); zeros for an empty text.

    >>> text_features("Which planet has the most moons?", 32).shape, float(abs(text_features("", 4)).sum())
    ((32,), 0.0)
    """
    text = clipped(text)
    if not text:
        return np.zeros(width, np.float32)
    # a space at either end marks where words begin and end; a short text still has an n-gram of each length
    letters = f"  {text}  ".encode("utf-8", "replace").lower()
    b = np.frombuffer(letters, np.uint8).astype(np.uint32)
    end = len(b)
    three = b[:-2] * _PLACES[0] + b[1:-1] * _PLACES[1] + b[2:] * _PLACES[2]
    hashed = np.empty(2 * end - 6, np.uint32)
    hashed[: end - 2] = three
    hashed[end - 2 :] = three[: end - 4] + b[3:-1] * _PLACES[3] + b[4:] * _PLACES[4]
    hashed ^= hashed >> _FAR
    hashed *= _MIX
    hashed ^= hashed >> _NEAR
    # twice as many buckets as features: the upper half holds the negative n-grams
    bins = np.bincount(hashed % np.uint32(2 * width), minlength=2 * width)
    sums = (bins[:width] - bins[width:]).astype(np.float32)
    features: NDArray[np.float32] = np.copysign(np.log1p(np.abs(sums)), sums)
    norm = math.sqrt(features @ features)
    return features / np.float32(norm) if norm else features


def clipped(text: str) -> str:
    """The text, of one longer than 2 x `MAX_CHARACTERS` characters without its middle."""
    return text if len(text) <= 2 * MAX_CHARACTERS else text[:MAX_CHARACTERS] + text[-MAX_CHARACTERS:]


def unit_vector(values: ArrayLike) -> NDArray[np.float32]:
    """Return an embedder's vector, float32 (D,), scaled to Euclidean norm 1; zeros stay zeros.

    Raises:
        ConfigError: it is not a vector of finite numbers, or one of more than `MOST_FEATURES`.
    """
    try:
        vector = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"embedder: must give a vector of numbers, gave {type(values).__name__}") from None
    if vector.ndim != 1 or not 0 < vector.size <= MOST_FEATURES or not np.isfinite(vector).all():
        raise ConfigError(
            f"embedder: must give a vector of 1 to {MOST_FEATURES} finite numbers, gave an array of shape "
            f"{vector.shape}"
        )
    largest = float(np.abs(vector).max())
    if not largest:
        return vector.astype(np.float32)
    vector = vector / largest  # so that no square overflows
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def name_of(embedder: object) -> str:
    """Return the name of an embedder's vectors: those of one name can be compared, wherever they were made.

    An endpoint's is its model with the parameters that are sent along (not its host); else the embedder's own ``name``,
    or what Python calls the function or class.
    """
    if isinstance(embedder, Endpoint):
        params = json.dumps(dict(embedder.params), sort_keys=True, default=str) if embedder.params else ""
        return f"{embedder.model} {params}".rstrip()
    name = getattr(embedder, "name", None)
    return name if isinstance(name, str) else getattr(embedder, "__qualname__", type(embedder).__qualname__)
