"""The policy that serves when no other can: the plurality of the cheapest endpoints. Its answers are marked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import PolicyError
from focalroute.core.records import F32, Evidence, Observation
from focalroute.observe.layout import CONTEXT, slices
from focalroute.policy.baselines import SURE, Baseline, cheapest_first, plurality
from focalroute.policy.bundle import Policy
from focalroute.policy.sequential import STEP, STEP_ENDPOINT, Der, Sequential

#: The policy version on answers that the fallback decided.
FALLBACK = -1

#: The fallback's name in messages.
FALLBACK_NAME = "the plurality of the three cheapest endpoints"

_MEMBERS = 3
_FIRST = slices(CONTEXT)["first"]
_ANSWERED = slices(STEP)["answered"].start
_STEP_PRICE = slices(STEP_ENDPOINT)["price"].start


class Fallback:
    """Asks the three cheapest endpoints once and takes the plurality."""

    version = FALLBACK
    experience = None
    knows_pool = False

    def ids(self, endpoints: Sequence[str]) -> NDArray[np.int64]:
        """Return zeros: it knows no endpoint."""
        return np.zeros(len(endpoints), np.int64)

    def decider_logits(self, observation: Observation, ids: NDArray[np.int64]) -> F32:
        """Return logits, float32 (N,), that ask the cheapest endpoints in round 1, and no others."""
        logits = np.full(len(ids), -SURE, np.float32)
        if observation.context[_FIRST][0]:
            logits[cheapest_first(observation)[:_MEMBERS]] = SURE
        return logits

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """See `focalroute.policy.baselines.plurality`."""
        return plurality(evidence)

    def actions(self, observation: Observation, ids: NDArray[np.int64]) -> F32:
        """Return a sequential policy's logits, float32 (N + 1,): the cheapest endpoint first, STOP after an answer."""
        prices = observation.endpoints[:, _STEP_PRICE]
        return np.append(-prices, SURE if observation.context[_ANSWERED] else -SURE).astype(np.float32)


#: Any policy that can serve.
Served = Policy | Der | Fallback | Baseline


class Guarded:
    """One ask's policy, replaced by the fallback if it fails.

    Attributes:
        endpoints: the pool's names, tuple of length N.
        version: the version recorded with the ask's answer, whether or not the fallback took over.
        rival: the other version of a trial (see `focalroute.policy.slot.draw_policy`); None without a trial.
        name: of a named policy; None for all others.
        learnable: whether nets decide; only their decisions are sampled, and kept as trajectories to learn from.
        sequential: whether it asks one endpoint after another, showing each the previous answer.
        one_a_round: whether at most one endpoint is asked in a round.
        failed: whether the fallback took over.
    """

    def __init__(self, policy: Served, endpoints: Sequence[str], rival: int | None = None) -> None:
        self._steps = policy if isinstance(policy, (Sequential, Der)) else None
        self._policy = Fallback() if isinstance(policy, Der) else policy
        self.endpoints = tuple(endpoints)
        self._ids = policy.ids(endpoints)
        self.version = policy.version
        self.rival = rival
        self.name = policy.name if isinstance(policy, Baseline) else None
        self.one_a_round = isinstance(policy, Baseline) and policy.one_a_round
        self.learnable = isinstance(policy, (Policy, Der))
        self.sequential = self._steps is not None
        self.failed = isinstance(policy, Fallback)

    def set_query(self, query_id: str, features: F32, cost_weight: float) -> None:
        """Tell a named policy the query that it decides."""
        if isinstance(self._policy, Baseline):
            self._policy = self._policy.for_query(query_id, features, cost_weight)

    def served(self, cost_weight: float) -> tuple[float, bool]:
        """See `Policy.served`."""
        return self._policy.served(cost_weight) if isinstance(self._policy, Policy) else (cost_weight, False)

    def decider_logits(self, observation: Observation) -> F32:
        """Return the policy's or the fallback's logits, float32 (N,)."""
        try:
            return self._policy.decider_logits(observation, self._ids)
        except PolicyError:
            return self._fall_back().decider_logits(observation, self._ids)

    def fusion_logits(self, evidence: Evidence) -> F32:
        """Return the policy's or the fallback's scores, float32 (K,)."""
        members = self._ids[list(evidence.endpoints)]
        try:
            return self._policy.fusion_logits(evidence, members)
        except PolicyError:
            return self._fall_back().fusion_logits(evidence, members)

    def actions(self, observation: Observation) -> F32:
        """Return a sequential policy's logits, float32 (N + 1,): of asking each endpoint, and last of STOP."""
        if self._steps is not None:
            with suppress(PolicyError):
                return self._steps.actions(observation, self._ids)
        return self._fall_back().actions(observation, self._ids)

    def _fall_back(self) -> Fallback:
        self._policy = fallback = Fallback()
        self._steps = None
        self.failed, self.learnable = True, False
        return fallback
