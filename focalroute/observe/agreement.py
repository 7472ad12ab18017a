"""How far open texts say the same: votes that members share with each other's replies.

No two replies to an open request are equal. So where candidates are open texts, a member votes for every one of them,
by how alike it is to what the member itself wrote: the squared cosine of their vectors, 1 for its own. Everything a
Fusion adds up over votes then counts agreement, and the reply it chooses is the one that most of the evidence is near
to (minimum Bayes risk decoding, Kumar and Byrne 2004, with the members' records as the posterior).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from focalroute.observe.features import text_features
from focalroute.observe.layout import MEMBER, slices

__all__ = ["Agreement", "TextEmbedder", "gathered", "shared"]

#: Maps a reply's text to a vector, always of the same width; it may be a coroutine function.
TextEmbedder = Callable[[str], ArrayLike | Awaitable[ArrayLike]]

F32 = NDArray[np.float32]

_WIDTH = 1024  # of the built-in vectors: a reply has more n-grams than a query
_AT = slices(MEMBER)
_SHARED = [_AT[name].start for name in ("vote", "probability", "evidence")]


class Agreement:
    """The replies of one ask, compared.

    Args:
        embed: the caller's own function; None: `text_features`.

    Attributes:
        failure: why the caller's own function was not used, the name of its error; None if it was, or there is none.
    """

    def __init__(self, embed: TextEmbedder | None = None) -> None:
        self.failure: str | None = None
        self._embed = embed
        self._own: dict[str, F32] = {}
        self._features: dict[str, F32] = {}

    async def read(self, texts: Iterable[str], deadline: float) -> None:
        """Have the caller's own function see these texts, all at once, by a time in the running loop's.

        Where it fails on any, all texts of the ask are compared by `text_features`.
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._own]
        if self._embed is None or self.failure is not None or not new:
            return
        try:
            async with asyncio.timeout_at(deadline):
                vectors = await asyncio.gather(*(_vector(self._embed, text) for text in new))
            self._own.update(zip(new, vectors, strict=True))
            np.stack(list(self._own.values()))  # of one width
        except Exception as error:  # noqa: BLE001 - whatever the caller's own function raises, the ask goes on
            self.failure = type(error).__name__

    def between(self, candidates: Sequence[str]) -> F32:
        """How alike each two candidates are, (K, K), in [0, 1]; 1 on the diagonal."""
        if len(candidates) == 1:
            return np.ones((1, 1), np.float32)
        own = [self._own.get(text) for text in candidates] if self.failure is None else [None]
        seen = [vector for vector in own if vector is not None]
        vectors = np.stack(seen if len(seen) == len(candidates) else [self._built_in(text) for text in candidates])
        alike = np.maximum(np.einsum("kd,ld->kl", vectors, vectors), 0) ** 2
        np.fill_diagonal(alike, 1)
        bounded: F32 = np.minimum(alike, 1).astype(np.float32)
        return bounded

    def _built_in(self, text: str) -> F32:
        found = self._features.get(text)
        if found is None:
            found = self._features[text] = text_features(text, _WIDTH)
        return found


async def _vector(embed: TextEmbedder, text: str) -> F32:
    """The normed vector that the caller's own function gives; one that is no coroutine function runs in a thread."""
    given = embed(text) if inspect.iscoroutinefunction(embed) else await asyncio.to_thread(embed, text)
    vector = np.asarray(await given if inspect.isawaitable(given) else given, np.float64)
    norm = float(np.linalg.norm(vector))
    if vector.ndim != 1 or not 0 < norm < np.inf:
        raise ValueError("embed: must give a vector of finite numbers that are not all zero")
    normed: F32 = (vector / norm).astype(np.float32)
    return normed


def shared(members: F32, alike: F32) -> F32:
    """Evidence (K, m, Fm) of hard votes, as votes shared by how alike the candidates are, (K, K).

    "vote", "probability" and "evidence" of a candidate become the sum over all candidates, each as far as it is alike;
    the first two at most 1. There is no probability whose logarithm could be taken.
    """
    soft = members.copy()
    soft[:, :, _SHARED] = np.einsum("kl,lmf->kmf", alike, members[:, :, _SHARED])
    soft[:, :, _SHARED[:2]] = np.minimum(soft[:, :, _SHARED[:2]], 1)
    soft[:, :, _AT["log_probability"].start] = 0
    return soft


def gathered(posterior: Sequence[float], leader: int, alike: F32) -> list[float]:
    """A posterior (K,) in which the leader has the others' mass as far as they are alike to it; the sum stays."""
    taken = [p * float(alike[leader, k]) for k, p in enumerate(posterior)]
    left = [p - t for p, t in zip(posterior, taken, strict=True)]
    left[leader] = sum(taken)
    return left
