"""Text features: hashed byte n-grams, the same on every machine and in every process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from focalroute.core.config import Endpoint

#: Width of the text features that an `Observer` uses by default.
TEXT_FEATURES = 256

#: Maps a text to a vector, always of the same width.
Embedder = Callable[[str], ArrayLike]

#: Characters read at the start and at the end of a text.
MAX_CHARACTERS = 4096

#: Most features an embedder may give, which bounds a memory of 4,096 texts.
MOST_FEATURES = 8192

# One odd multiplier for each byte of an n-gram.
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
    """Hash all byte trigrams and 5-grams of the UTF-8 text, ASCII letters lowered, to a vector of Euclidean norm 1.

    Each n-gram adds +1 or -1 to one feature; its hash gives feature and sign, so that collisions cancel in expectation
    (Weinberger et al. 2009, Feature hashing for large scale multitask learning). Each sum s is then replaced by
    sign(s) ln(1 + |s|): an n-gram that occurs ten times says little more than one that occurs twice. Time is linear in
    the length, and bounded.

    Args:
        text: any string; the middle of one longer than 2 x `MAX_CHARACTERS` is left out.
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
    """Return the text, without its middle if it is longer than 2 x `MAX_CHARACTERS` characters."""
    return text if len(text) <= 2 * MAX_CHARACTERS else text[:MAX_CHARACTERS] + text[-MAX_CHARACTERS:]


def unit_vector(values: ArrayLike) -> NDArray[np.float32]:
    """Return an embedder's vector, float32 (D,), scaled to Euclidean norm 1; zeros stay zeros.

    Raises:
        ValueError: it is not a vector of 1 to `MOST_FEATURES` finite numbers.
    """
    try:
        vector = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"must give a vector of numbers, gave {type(values).__name__}") from None
    shaped = vector.ndim == 1 and 0 < vector.size <= MOST_FEATURES
    if not shaped or not np.isfinite(vector).all():
        gave = "a NaN or an infinity" if shaped else f"an array of shape {vector.shape}"
        raise ValueError(f"must give a vector of 1 to {MOST_FEATURES} finite numbers, gave {gave}")
    largest = float(np.abs(vector).max())
    if not largest:
        return vector.astype(np.float32)
    vector = vector / largest  # so that no square overflows
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def name_of(embedder: object) -> str:
    """Return the name of an embedder's vectors; vectors with the same name can be compared, wherever they were made.

    For an endpoint it is the model with its request parameters (not the host), else the embedder's own ``name`` or the
    qualified name of its function or class.
    """
    if isinstance(embedder, Endpoint):
        params = json.dumps(dict(embedder.params), sort_keys=True, default=str) if embedder.params else ""
        return f"{embedder.model} {params}".rstrip()
    name = getattr(embedder, "name", None)
    return name if isinstance(name, str) else getattr(embedder, "__qualname__", type(embedder).__qualname__)
