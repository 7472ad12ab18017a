"""Asking one endpoint after another, each shown the answer before its own: what such a policy sees, and two rules.

In DER's terms (arXiv 2412.07448) the state is [query, last answer], an action asks one endpoint, who may have been
asked before, or stops, and the answer given last is the answer. `focalroute.serving.sequential` plays it. The rules
go by their
names, ``policy="self-correction"`` and ``policy="sequential-round-robin"``; the learned policy is a folder
(`focalroute.policy.der`). ``max_rounds`` is T_max for all three.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, Decision, Observation
from focalroute.observe.layout import slices
from focalroute.policy.baselines import SURE, SURE_ENOUGH, Baseline

I64 = NDArray[np.int64]

#: Widths of the hashed text (`focalroute.observe.features.text_features`) of the query and of the last answer.
QUERY, ANSWER = 64, 32

#: `Observation.context` before a step.
STEP: Mapping[str, int] = {
    "query": QUERY,  # its text
    "answer": ANSWER,  # text of the last answer in normal form; zeros before the first, as all that follow
    "answered": 1,  # 1 once somebody has answered
    "agreeing": 1,  # share of the usable replies so far that gave the last answer
    "repeated": 1,  # 1 if the last two usable replies gave the same answer
    "certainty": 1,  # the last reply's own mass on its answer; 0 where it gave none
    "done": 1,  # steps taken / T_max
}

#: A row of `Observation.endpoints` before a step.
STEP_ENDPOINT: Mapping[str, int] = {
    "last": 1,  # 1 for the endpoint that gave the last answer
    "asked": 1,  # how often it was asked / T_max
    "accuracy": 1,  # as in `focalroute.observe.layout.ENDPOINT`, and so the next
    "price": 1,
}

_AT = {name: where.start for name, where in slices(STEP).items()}
_LAST, _ACCURACY, _PRICE = (slices(STEP_ENDPOINT)[name].start for name in ("last", "accuracy", "price"))


def stacked(query: F32, answer: F32, figures: F32, endpoints: Sequence[F32]) -> tuple[F32, F32]:
    """The states before B steps.

    Args:
        query: (B, `QUERY`).
        answer: (B, `ANSWER`).
        figures: (B, 5), the rest of `STEP` in its order.
        endpoints: (B, N) for each column of `STEP_ENDPOINT`.

    Returns:
        Contexts (B, Dc) and endpoints (B, N, De), float32.
    """
    context = np.concatenate([query, answer, figures], axis=1).astype(np.float32, copy=False)
    return context, np.stack(endpoints, axis=2).astype(np.float32, copy=False)


def choose(logits: F32, heads: Sequence[int], *, round: int, must_pick: bool, rng: random.Random | None) -> Decision:
    """One action by a softmax over those that can be taken.

    Args:
        logits: float32 (N + 1,), the last one for STOP.
        heads: the endpoints that can be asked; none: the STOP is forced.
        round: 1-based.
        must_pick: STOP is not an action: none has answered yet.
        rng: draws it; None: the likeliest, the first of equals.

    Returns:
        ``probabilities`` are those of asking each endpoint, ``log_mu`` that of what was drawn.
    """
    stop = len(logits) - 1
    options = [*heads] if must_pick else [*heads, stop]
    if not heads:
        return Decision(round, must_pick, (), (), (0.0,) * stop, (), None)
    z = logits[options].astype(np.float64)
    q = np.exp(z - z.max())
    q /= q.sum()
    place = int(z.argmax()) if rng is None else _drawn(q, rng.random())
    probabilities = np.zeros(stop + 1)
    probabilities[options] = q
    picked = () if options[place] == stop else (options[place],)
    return Decision(
        round=round,
        must_pick=must_pick,
        order=tuple(heads),
        eligible=(True,) * len(heads),
        probabilities=tuple(probabilities[:stop].tolist()),
        picked=picked,
        log_mu=None if rng is None else float(np.log(q[place])),
    )


def _drawn(q: NDArray[np.float64], u: float) -> int:
    place = int(np.searchsorted(np.cumsum(q), u, side="right"))
    return min(place, int(np.flatnonzero(q)[-1]))


class Sequential(Baseline, ABC):
    """A rule that asks one endpoint after another. It stops by `settled`, and at T_max."""

    one_a_round = True

    def actions(self, observation: Observation, ids: I64) -> F32:
        """Logits, float32 (N + 1,): of asking each endpoint, and last of STOP."""
        wanted = self._route(observation)
        logits = np.full(len(observation.endpoints) + 1, -2.0, np.float32)
        logits[wanted] = -1 - np.arange(len(wanted)) / len(wanted)  # stand-ins, as long as nobody has answered
        logits[wanted[0]], logits[-1] = SURE, 0.0
        if settled(observation):
            logits[-1] = 2 * SURE
        return logits

    @abstractmethod
    def _route(self, observation: Observation) -> Sequence[int]:
        """All endpoints, the one to ask now first."""


def settled(observation: Observation) -> bool:
    """Whether an answer stands: the last two replies agree, or the last one gave itself `SURE_ENOUGH`."""
    context = observation.context
    return bool(context[_AT["repeated"]] or context[_AT["certainty"]] >= SURE_ENOUGH)


class SelfCorrection(Sequential):
    """One expert that refines its own answer: the most accurate in the window, the cheapest while nothing is known."""

    name = "self-correction"

    def _route(self, observation: Observation) -> list[int]:
        rows = observation.endpoints
        order: list[int] = np.lexsort((rows[:, _PRICE], -rows[:, _ACCURACY], -rows[:, _LAST])).tolist()
        return order


class SequentialRoundRobin(Sequential):
    """A fixed route: the endpoints in pool order, each improving on the one before; the first again after the last."""

    name = "sequential-round-robin"

    def _route(self, observation: Observation) -> list[int]:
        rows = observation.endpoints
        n = len(rows)
        before = int(rows[:, _LAST].argmax()) if rows[:, _LAST].any() else n - 1
        return [(before + 1 + step) % n for step in range(n)]


_KINDS = (SelfCorrection, SequentialRoundRobin)
#: What ``policy=`` knows by name besides `focalroute.policy.baselines.SERVED_BASELINES`.
SEQUENTIAL: Mapping[str, type[Sequential]] = {kind.name: kind for kind in _KINDS}
