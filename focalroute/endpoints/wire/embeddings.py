"""The embeddings format, without I/O: texts to JSON, and a reply (taken as hostile input) to vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from focalroute.core.records import Usage
from focalroute.endpoints.wire.fields import broken
from focalroute.endpoints.wire.format import opened, parsed

#: No vector has more numbers than this, nor larger ones.
_MOST_NUMBERS = 2**16
_LARGEST = 1e30


@dataclass(frozen=True, slots=True)
class Embedded:
    """One vector for each text, all of one length. ``usage`` is None where none (credible) came back."""

    vectors: tuple[Sequence[float], ...] = field(repr=False)
    usage: Usage | None


def encode_texts(texts: Sequence[str], model: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON body of a request; ``params`` (such as ``dimensions``) go along."""
    return {**params, "model": model, "input": list(texts)}


def decode_embeddings(body: bytes | bytearray, count: int) -> Embedded:
    """The vectors of ``count`` texts, in their order.

    Raises:
        CallFailed: the body is not JSON, or not so many embeddings; ``.usage`` is kept where it could be read.
    """
    _, data, usage = opened(parsed(body), "data", generates=False)
    if not isinstance(data, list) or len(data) != count:
        raise broken("the reply does not have an embedding for each text", usage)
    vectors: dict[int, Sequence[float]] = {}
    for place, item in enumerate(data):
        item = item if isinstance(item, dict) else {}
        index = item.get("index", place)
        if type(index) is not int or not _is_vector(item.get("embedding")):
            raise broken("an embedding is not a list of finite numbers", usage)
        vectors[index] = item["embedding"]
    if vectors.keys() != set(range(count)) or len({len(vector) for vector in vectors.values()}) > 1:
        raise broken("the embeddings do not fit the texts, or each other", usage)
    return Embedded(tuple(vectors[index] for index in range(count)), usage)


def _is_vector(value: object) -> bool:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_NUMBERS:
        return False
    return all(type(x) in (int, float) and -_LARGEST < x < _LARGEST for x in value)  # which NaN is not
