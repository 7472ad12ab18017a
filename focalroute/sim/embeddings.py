"""What a simulated model's /embeddings gives: the hashed words of a text, the same in every process."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from focalroute.sim.dialects import Refused
from focalroute.sim.models import uniforms
from focalroute.sim.replies import count_tokens

_WORD = re.compile(r"\w+")
_WIDTH = 64
_MOST = 4096


def vector(text: str, width: int = _WIDTH) -> list[float]:
    """A vector of norm 1: each word adds +1 or -1 in a place of its own, both by its hash; zeros without words.

    >>> vector("moons", 4) == vector("Moons?", 4)
    True
    """
    sums = [0.0] * width
    for word in _WORD.findall(text.lower()):
        place, sign, *_ = uniforms("word", word)
        sums[int(place * width)] += 1.0 if sign < 0.5 else -1.0
    norm = math.sqrt(sum(x * x for x in sums))
    return [x / norm for x in sums] if norm else sums


def _texts(body: Mapping[str, Any]) -> list[str]:
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise Refused(400, "'input' must be a string or a non-empty list of strings.")
    return texts


def embeddings(body: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The reply to a request; Refused if something in it is wrong."""
    texts, width = _texts(body), body.get("dimensions", _WIDTH)
    if type(width) is not int or not 0 < width <= _MOST:
        raise Refused(400, f"'dimensions' must be an integer from 1 to {_MOST}.")
    tokens = sum(map(count_tokens, texts))
    data = [{"object": "embedding", "index": i, "embedding": vector(text, width)} for i, text in enumerate(texts)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
