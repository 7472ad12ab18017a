"""Soft votes for open texts, weighted by similarity.

No two replies to an open request are equal. So each member votes for every candidate, with its similarity to the
member's own reply as weight: the squared cosine of their vectors, 1 for its own. The Fusion then chooses the reply
closest to most of the evidence (minimum Bayes risk decoding, Kumar and Byrne 2004, with the members' records as the
posterior).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from focalroute.core.records import F32
from focalroute.observe.features import text_features
from focalroute.observe.layout import MEMBER, slices

#: Embeds several texts. For each it returns a vector (norm 1), and why there is none, in words (else empty).
BatchEmbedder = Callable[[Sequence[str]], Awaitable[Sequence[tuple[F32, str]]]]

_WIDTH = 1024  # of the built-in vectors; larger than for queries, as replies have more n-grams
_AT = slices(MEMBER)
_SOFTENED = [_AT[name].start for name in ("vote", "probability", "evidence")]
_LOG_PROBABILITY = _AT["log_probability"].start


class Agreement:
    """Measures how similar the replies of one ask are.

    Args:
        embedder: embeds texts with the ensemble's embedder; None: `text_features` is used.

    Attributes:
        failure: why the embedder's vectors are not used, in words; empty if they are, or if there is no embedder.
    """

    def __init__(self, embedder: BatchEmbedder | None = None) -> None:
        self.failure = ""
        self._embedder = embedder
        self._own: dict[str, F32] = {}
        self._features: dict[str, F32] = {}

    async def embed(self, candidates: Sequence[str]) -> None:
        """Embed new candidates in one batch; a single candidate is not embedded, as there is nothing to compare.

        If any embedding fails, all texts of the ask are compared by `text_features`.

        Raises:
            ConfigError: the embedder is a function that does not return vectors of one length.
            StoreError: a limit cannot be kept, as the store fails.
        """
        new = [text for text in candidates if text not in self._own]
        if self._embedder is None or self.failure or len(candidates) < 2 or not new:
            return
        for text, (vector, missing) in zip(new, await self._embedder(new), strict=True):
            self._own[text] = vector
            self.failure = self.failure or missing

    def similarities(self, candidates: Sequence[str]) -> F32:
        """Return the similarity of each pair of candidates, (K, K), in [0, 1]; 1 on the diagonal."""
        if not self.failure and all(text in self._own for text in candidates):
            vectors = np.stack([self._own[text] for text in candidates])
        else:
            vectors = np.stack([self._built_in(text) for text in candidates])
        squared = np.maximum(np.einsum("kd,ld->kl", vectors, vectors), 0) ** 2
        np.fill_diagonal(squared, 1)
        bounded: F32 = np.minimum(squared, 1).astype(np.float32)
        return bounded

    def _built_in(self, text: str) -> F32:
        found = self._features.get(text)
        if found is None:
            found = self._features[text] = text_features(text, _WIDTH)
        return found


def soft_votes(members: F32, similarities: F32 | None) -> F32:
    """Return the members' evidence (K, m, Fm) with each vote spread over similar candidates.

    "vote", "probability" and "evidence" of a candidate become sums over all candidates, weighted by similarity; the
    first two are at most 1. "log_probability" becomes 0.

    Args:
        members: (K, m, Fm), see `focalroute.core.records.Evidence`.
        similarities: (K, K); None: there is only one candidate.
    """
    soft = members.copy()
    soft[:, :, _LOG_PROBABILITY] = 0
    if similarities is not None:
        soft[:, :, _SOFTENED] = np.einsum("kl,lmf->kmf", similarities, members[:, :, _SOFTENED])
        soft[:, :, _SOFTENED[:2]] = np.minimum(soft[:, :, _SOFTENED[:2]], 1)
    return soft


def moved_to_leader(posterior: Sequence[float], leader: int, similarities: F32) -> list[float]:
    """Return the posterior (K,) after moving mass to the leader from candidates similar to it; the sum is unchanged."""
    taken = [p * float(similarities[leader, k]) for k, p in enumerate(posterior)]
    left = [p - t for p, t in zip(posterior, taken, strict=True)]
    left[leader] = sum(taken)
    return left
