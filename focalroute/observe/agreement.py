"""How far open texts say the same: votes that members share with each other's replies.

No two replies to an open request are equal. So where candidates are open texts, a member votes for every one of them,
by how alike it is to what the member itself wrote: the squared cosine of their vectors, 1 for its own. Everything a
Fusion adds up over votes then counts agreement, and the reply it chooses is the one that most of the evidence is near
to (minimum Bayes risk decoding, Kumar and Byrne 2004, with the members' records as the posterior).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from focalroute.core.records import F32
from focalroute.observe.features import text_features
from focalroute.observe.layout import MEMBER, slices

#: Makes the vectors of several texts, norm 1: of each the vector, and why there is none, in words (else empty).
Reader = Callable[[Sequence[str]], Awaitable[Sequence[tuple[F32, str]]]]

_WIDTH = 1024  # of the built-in vectors: a reply has more n-grams than a query
_AT = slices(MEMBER)
_SHARED = [_AT[name].start for name in ("vote", "probability", "evidence")]
_LOG_PROBABILITY = _AT["log_probability"].start


class Agreement:
    """The replies of one ask, compared.

    Args:
        reader: makes the vectors of the ensemble's embedder; None: `text_features` does.

    Attributes:
        failure: why the embedder's vectors are not used, in words; empty: they are, or there is no embedder.
    """

    def __init__(self, reader: Reader | None = None) -> None:
        self.failure = ""
        self._reader = reader
        self._own: dict[str, F32] = {}
        self._features: dict[str, F32] = {}

    async def read(self, candidates: Sequence[str]) -> None:
        """Have the embedder see the candidates, all at once; one alone is like itself and costs nothing.

        Where it fails on any, all texts of the ask are compared by `text_features`.

        Raises:
            ConfigError: the embedder is a function that gives no vectors of one length.
            StoreError: a limit cannot be kept, as the store fails.
        """
        new = [text for text in candidates if text not in self._own]
        if self._reader is None or self.failure or len(candidates) < 2 or not new:
            return
        for text, (vector, missing) in zip(new, await self._reader(new), strict=True):
            self._own[text] = vector
            self.failure = self.failure or missing

    def between(self, candidates: Sequence[str]) -> F32:
        """How alike each two candidates are, (K, K), in [0, 1]; 1 on the diagonal."""
        seen = [] if self.failure else [self._own[text] for text in candidates if text in self._own]
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


def shared(members: F32, alike: F32 | None) -> F32:
    """Evidence (K, m, Fm) of hard votes, as votes shared by how alike the candidates are, (K, K).

    "vote", "probability" and "evidence" of a candidate become the sum over all candidates, each as far as it is alike;
    the first two at most 1. There is no probability whose logarithm could be taken.

    Args:
        alike: None: there is one candidate, and no other to share with.
    """
    soft = members.copy()
    soft[:, :, _LOG_PROBABILITY] = 0
    if alike is not None:
        soft[:, :, _SHARED] = np.einsum("kl,lmf->kmf", alike, members[:, :, _SHARED])
        soft[:, :, _SHARED[:2]] = np.minimum(soft[:, :, _SHARED[:2]], 1)
    return soft


def gathered(posterior: Sequence[float], leader: int, alike: F32) -> list[float]:
    """A posterior (K,) in which the leader has the others' mass as far as they are alike to it; the sum stays."""
    taken = [p * float(alike[leader, k]) for k, p in enumerate(posterior)]
    left = [p - t for p, t in zip(posterior, taken, strict=True)]
    left[leader] = sum(taken)
    return left
