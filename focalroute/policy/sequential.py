"""Sequential policies, which ask one endpoint after another and show each the previous answer: two rules, and DER.

In DER's terms (arXiv 2412.07448) the state is [query, last answer], an action asks one endpoint (possibly again) or
stops, and the last answer is the result. `focalroute.serving.sequential` runs them. The rules serve by name,
``policy="self-correction"`` and ``policy="sequential-round-robin"``. The learned policy, DER, is a folder of this form.
``max_rounds`` is T_max for all three.

root/v000001/
  der.onnx             seen (B, D) -> logits (B, N + 1): asking each of the N endpoints of the manifest, and STOP
  manifest.json        as in any bundle (`focalroute.policy.bundle`), with the layout of `focalroute.policy.sequential`
"""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import PolicyError
from focalroute.core.records import F32, I64, Decision, Observation
from focalroute.observe.layout import slices, width
from focalroute.policy.baselines import SURE, SURE_ENOUGH, Baseline
from focalroute.policy.bundle import (
    DER_FILE,
    Policy,
    Published,
    header,
    load_folder,
    load_version,
    manifest_of,
    opened,
    verified,
)
from focalroute.policy.onnx_model import Session, Signature

#: Widths of the text features (`focalroute.observe.features.text_features`) of the query and of the last answer.
QUERY, ANSWER = 64, 32

#: `Observation.context` before a step.
STEP: Mapping[str, int] = {
    "query": QUERY,  # its text
    "answer": ANSWER,  # the last answer in normal form; 0 before the first, as are all below
    "answered": 1,  # 1 once an endpoint has answered
    "agreeing": 1,  # share of the usable replies so far that gave the last answer
    "repeated": 1,  # 1 if the last two usable replies gave the same answer
    "certainty": 1,  # the last reply's own mass on its answer; 0 if it gave none
    "done": 1,  # steps taken / T_max
}

#: A row of `Observation.endpoints` before a step.
STEP_ENDPOINT: Mapping[str, int] = {
    "last": 1,  # 1 for the endpoint that gave the last answer
    "asked": 1,  # how often it was asked / T_max
    "accuracy": 1,  # as in `focalroute.observe.layout.ENDPOINT`, like the next
    "price": 1,
}

_AT = {name: where.start for name, where in slices(STEP).items()}
_LAST, _ACCURACY, _PRICE = (slices(STEP_ENDPOINT)[name].start for name in ("last", "accuracy", "price"))


def stacked(query: F32, answer: F32, figures: F32, endpoints: Sequence[F32]) -> tuple[F32, F32]:
    """Return the states before B steps.

    Args:
        query: (B, `QUERY`).
        answer: (B, `ANSWER`).
        figures: (B, 5), the other columns of `STEP` in order.
        endpoints: (B, N) for each column of `STEP_ENDPOINT`.

    Returns:
        Contexts (B, Dc) and endpoints (B, N, De), float32.
    """
    context = np.concatenate([query, answer, figures], axis=1).astype(np.float32, copy=False)
    return context, np.stack(endpoints, axis=2).astype(np.float32, copy=False)


def choose(logits: F32, heads: Sequence[int], *, round: int, must_pick: bool, rng: random.Random | None) -> Decision:
    """Choose one action by a softmax over the possible ones.

    Args:
        logits: float32 (N + 1,), the last one for STOP.
        heads: the endpoints that can be asked; if empty, STOP is forced.
        round: 1-based.
        must_pick: STOP is not possible, as no endpoint has answered yet.
        rng: draws the action; None: take the likeliest, the first of ties.

    Returns:
        The decision: ``probabilities`` are those of asking each endpoint, ``log_mu`` is the drawn action's.
    """
    stop = len(logits) - 1
    options = [*heads] if must_pick else [*heads, stop]
    if not heads:
        return Decision(round, must_pick, (), (), (0.0,) * stop, (), None)
    z = logits[options].astype(np.float64)
    q = np.exp(z - z.max())
    q /= q.sum()
    place = int(z.argmax()) if rng is None else _inverse_cdf(q, rng.random())
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


def _inverse_cdf(q: NDArray[np.float64], u: float) -> int:
    """Return the index that a uniform random number u draws from the distribution q."""
    place = int(np.searchsorted(np.cumsum(q), u, side="right"))
    return min(place, int(np.flatnonzero(q)[-1]))


class Sequential(Baseline, ABC):
    """A rule that asks one endpoint after another until `settled`, at most T_max times."""

    one_a_round = True

    def actions(self, observation: Observation, ids: I64) -> F32:
        """Return logits, float32 (N + 1,): of asking each endpoint, and last of STOP."""
        wanted = self._route(observation)
        logits = np.full(len(observation.endpoints) + 1, -2.0, np.float32)
        logits[wanted] = -1 - np.arange(len(wanted)) / len(wanted)  # stand-ins, until an endpoint has answered
        logits[wanted[0]], logits[-1] = SURE, 0.0
        if settled(observation):
            logits[-1] = 2 * SURE
        return logits

    @abstractmethod
    def _route(self, observation: Observation) -> Sequence[int]:
        """Return all endpoints, the one to ask now first."""


def settled(observation: Observation) -> bool:
    """Whether the last two replies agree, or the last one has mass `SURE_ENOUGH` on its own answer."""
    context = observation.context
    return bool(context[_AT["repeated"]] or context[_AT["certainty"]] >= SURE_ENOUGH)


class SelfCorrection(Sequential):
    """One endpoint refines its own answer: the most accurate in the window, the cheapest while nothing is known."""

    name = "self-correction"

    def _route(self, observation: Observation) -> list[int]:
        rows = observation.endpoints
        order: list[int] = np.lexsort((rows[:, _PRICE], -rows[:, _ACCURACY], -rows[:, _LAST])).tolist()
        return order


class SequentialRoundRobin(Sequential):
    """The endpoints in pool order, over and over, each improving on the previous answer."""

    name = "sequential-round-robin"

    def _route(self, observation: Observation) -> list[int]:
        rows = observation.endpoints
        n = len(rows)
        before = int(rows[:, _LAST].argmax()) if rows[:, _LAST].any() else n - 1
        return [(before + 1 + step) % n for step in range(n)]


_KINDS = (SelfCorrection, SequentialRoundRobin)
#: The sequential rules by name.
SEQUENTIAL: Mapping[str, type[Sequential]] = {kind.name: kind for kind in _KINDS}


#: The layout as in a manifest.
DER_SLICES = {
    "step": [list(item) for item in STEP.items()],
    "step_endpoint": [list(item) for item in STEP_ENDPOINT.items()],
}
_NEVER = -1e4  # the logit of an endpoint that the policy does not know


def flat(context: F32, endpoints: F32) -> F32:
    """Return the network's input, (B, Dc + N De), from contexts (B, Dc) and endpoints (B, N, De)."""
    return np.concatenate([context, endpoints.reshape(len(endpoints), -1)], axis=1)


@dataclass(frozen=True, slots=True)
class Der(Published):
    """A learned sequential policy, ready to serve. Immutable; any number of threads may use it at once.

    An endpoint that it does not know is asked only if no other can be.

    Attributes:
        experience, knows_pool: as in `focalroute.policy.bundle.Policy`.
    """

    _net: Session = field(repr=False)
    experience: ClassVar[None] = None
    knows_pool: ClassVar[bool] = True

    def ids(self, endpoints: Sequence[str]) -> I64:
        """Return each endpoint's index among the actions, (N,) in pool order; -1 for unknown ones."""
        return np.array([self.names.index(name) if name in self.names else -1 for name in endpoints], np.int64)

    def actions(self, observation: Observation, ids: I64) -> F32:
        """Return logits of the pool's endpoints and STOP, float32 (N + 1,), given their ids; PolicyError on failure."""
        known = ids >= 0
        rows = np.zeros((len(self.names), width(STEP_ENDPOINT)), np.float32)
        rows[ids[known]] = observation.endpoints[known]
        found = self._net.run({"seen": flat(observation.context[None], rows[None])})[0]
        logits = np.full(len(ids) + 1, _NEVER, np.float32)
        logits[:-1][known], logits[-1] = found[ids[known]], found[-1]
        return logits


def load_der(folder: Path) -> Der:
    """Load the sequential policy in one version's folder.

    Raises:
        PolicyError: it fails a check; the message names the file, the reason and what to do.
    """
    manifest = manifest_of(folder, DER_SLICES)
    names = tuple(manifest["names"])
    inputs = width(STEP) + len(names) * width(STEP_ENDPOINT)
    shapes = {"seen": (None, inputs), "logits": (None, len(names) + 1)}
    signature: Signature = {name: ("tensor(float)", shape) for name, shape in shapes.items()}
    policy = Der(
        **header(manifest),
        _net=opened(folder / DER_FILE, verified(folder, DER_FILE, manifest), signature),
    )
    seen = Observation(np.ones(width(STEP), np.float32), np.ones((len(names), width(STEP_ENDPOINT)), np.float32))
    try:
        policy.actions(seen, policy.ids(names))
    except (PolicyError, ValueError, IndexError) as error:
        raise PolicyError(f"{folder / DER_FILE}: fails on a trial: {error}; publish it again") from None
    return policy


def load_any_folder(folder: Path) -> Policy | Der:
    """Load the policy in one version's folder, of either kind; PolicyError if it fails a check."""
    der = os.path.lexists(folder / DER_FILE)  # False also if the folder may not be entered; `load_folder` says so
    return load_der(folder) if der else load_folder(folder)


def load_served(root: str | Path, version: int | None = None) -> Policy | Der:
    """Load the policy of this version (None: the current one), of either kind; PolicyError if it fails a check."""
    return load_version(root, version, load_any_folder)
