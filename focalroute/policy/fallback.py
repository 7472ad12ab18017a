"""What serves when no policy can: the plurality of the cheapest few, in plain Python. Every such answer says so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from focalroute.errors import PolicyError
from focalroute.observe.layout import CONTEXT, ENDPOINT, MEMBER, slices
from focalroute.policy.bundle import Policy
from focalroute.records import F32, Evidence, Observation

__all__ = ["FALLBACK", "Fallback", "Guarded"]

#: The policy version stamped on answers that no policy decided.
FALLBACK = -1

_MEMBERS = 3
_FIRST = slices(CONTEXT)["first"]
_PRICE = slices(ENDPOINT)["price"]
_VOTE = slices(MEMBER)["vote"]
_PROBABILITY = slices(MEMBER)["probability"]
_SURE = 9.0


class Fallback:
    """Asks the three cheapest endpoints once and takes the plurality, ties by the mass they gave."""

    version = FALLBACK
    experience = None

    def ids(self, endpoints: Sequence[str]) -> NDArray[np.int64]:
        """No endpoint is known to it."""
        return np.zeros(len(endpoints), np.int64)

    def decider_logits(self, observation: Observation, ids: NDArray[np.int64]) -> F32:
        """Surely yes for the cheapest in round 1, surely no for everything else."""
        logits = np.full(len(ids), -_SURE, np.float32)
        if observation.context[_FIRST][0]:
            logits[np.argsort(observation.endpoints[:, _PRICE].ravel(), kind="stable")[:_MEMBERS]] = _SURE
        return logits

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """Votes, and a hundredth of the mass."""
        votes: F32 = evidence.members[:, :, _VOTE].sum((1, 2))
        mass: F32 = evidence.members[:, :, _PROBABILITY].sum((1, 2))
        return votes + np.float32(0.01) * mass


class Guarded:
    """One ask's policy: the current one, and the fallback from the moment it fails.

    Attributes:
        endpoints: the pool's names, tuple of length N.
        version: the one version that every answer of this ask is stamped with.
        failed: whether the fallback took over.
    """

    def __init__(self, policy: Policy | Fallback, endpoints: Sequence[str]) -> None:
        self._policy = policy
        self.endpoints = tuple(endpoints)
        self._ids = policy.ids(endpoints)
        self.version = policy.version
        self.failed = isinstance(policy, Fallback)

    def decider_logits(self, observation: Observation) -> F32:
        """float32 (N,)."""
        try:
            return self._policy.decider_logits(observation, self._ids)
        except PolicyError:
            return self._fall_back().decider_logits(observation, self._ids)

    def fusion_logits(self, evidence: Evidence) -> F32:
        """float32 (K,)."""
        members = self._ids[list(evidence.endpoints)]
        try:
            return self._policy.fusion_logits(evidence, members)
        except PolicyError:
            return self._fall_back().fusion_logits(evidence, members)

    def _fall_back(self) -> Fallback:
        self._policy = fallback = Fallback()
        self.failed = True
        return fallback
