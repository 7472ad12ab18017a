"""Trains the Fusion on recorded answers by cross-entropy, over random or given sets of members.

The target distribution is the candidates' values, normalised: for a labelled question, 1 for the right one. A question
is ignored where no candidate offered is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from focalroute.core.records import F32, I64, Bools
from focalroute.learn.adam import Adam, cosine_decay
from focalroute.learn.backend import NUMPY, Backend
from focalroute.learn.losses import log_posterior
from focalroute.learn.nets import FusionNet, fusion_pass, parameters
from focalroute.learn.offline.rollout import LogView, evidence
from focalroute.observe import layout

_LATER = layout.slices(layout.MEMBER)["later"].start
_PRESENT = layout.slices(layout.MEMBER)["present"].start
_VOTE = layout.slices(layout.MEMBER)["vote"].start
_MASS = layout.slices(layout.MEMBER)["probability"].start

#: Rows (B,) of a log -> the endpoints asked in round 1 and later, two (B, N).
Sets = Callable[[I64, np.random.Generator], tuple[Bools, Bools]]

#: A batch to learn from: queries, rows (B,) of these, and the endpoints asked in round 1 and later, two (B, N).
Lesson = tuple[LogView, I64, tuple[Bools, Bools]]


def random_sets(usable: Bools, everyone: float = 0.1) -> Sets:
    """Return a function that draws members at random: mostly a few, rarely all.

    All sets of a batch have the same size, so that arrays stay small.

    Args:
        usable: (T, N) whether the endpoint's reply has an answer.
        everyone: probability that all endpoints are asked.
    """
    n = usable.shape[1]

    def draw(rows: I64, rng: np.random.Generator) -> tuple[Bools, Bools]:
        size = n if rng.random() < everyone else int(min(n, rng.choice((1, 2, 2, 3, 3, 4, 6))))
        score = rng.random((len(rows), n)) - usable[rows]
        asked = score.argsort(axis=1).argsort(axis=1) < size
        later = asked & (rng.random((len(rows), n)) < rng.choice((0.0, 0.4)))
        return asked & ~later, later

    return draw


def fusion_inputs(seen: LogView, at: I64, first: Bools, later: Bools) -> tuple[F32, F32, I64, Bools]:
    """Return the Fusion's input for sets: members (B, K, m, Fm), candidates (B, K, Fc), ids (B, m), offered (B, K)."""
    answered = (first | later) & seen.recorded.usable[at]
    width = max(int(answered.sum(axis=1).max(initial=0)), 1)
    order = np.argsort(~answered, axis=1, kind="stable")[:, :width]
    each = np.arange(len(at))[:, None]
    members = seen.features[at[:, None, None], np.arange(seen.features.shape[1])[:, None], order[:, None, :]]
    members = members * answered[each, order][:, None, :, None]
    members[..., _LATER] = later[each, order][:, None, :] * members[..., _PRESENT]
    votes, mass = members[..., _VOTE].sum(axis=2), members[..., _MASS].sum(axis=2)
    count = answered.sum(axis=1).astype(np.float32)
    part = replace(seen, recorded=seen.recorded.take(at))
    features, offered = evidence(part, votes[:, None], mass[:, None], count[:, None])
    return members, features[:, 0], seen.ids[order] * answered[each, order], offered[:, 0]


def fit(
    net: FusionNet,
    seen: LogView,
    sets: Sets,
    *,
    epochs: int,
    rate: float,
    rng: np.random.Generator,
    batch: int = 256,
    passes: Backend = NUMPY,
    advance: Callable[[int], object] = lambda _: None,
) -> FusionNet:
    """Train for some epochs of Adam, with a learning rate that falls to a twentieth along a cosine.

    Args:
        net: where to start.
        seen: all rows to learn from.
        sets: draws the endpoints asked.
        epochs: passes over the rows.
        rate: the learning rate at the start.
        rng: for the order of the rows, and the sets.
        batch: rows in a step.
        passes: the engine that runs the networks.
        advance: called with 1 after every epoch.
    """
    size = len(seen.recorded)
    parts = max(1, round(size / batch))

    def lessons() -> Iterator[Lesson]:
        for _ in range(epochs):
            for at in np.array_split(rng.permutation(size), parts):
                yield seen, at, sets(at, rng)
            advance(1)

    return descend(net, lessons(), steps=epochs * parts, rate=rate, passes=passes)


def descend(
    net: FusionNet, lessons: Iterable[Lesson], *, steps: int, rate: float, passes: Backend = NUMPY
) -> FusionNet:
    """Take one step of Adam for each lesson, with the learning rate of `fit`."""
    adam = Adam(parameters(net), learning_rate=rate, max_norm=5.0)
    for step, (seen, at, asked) in enumerate(lessons):
        members, candidates, ids, offered = fusion_inputs(seen, at, *asked)
        logits, vjp = passes.fusion(net, members, candidates, ids)
        target = seen.recorded.worth[at] * offered
        total = target.sum(axis=1, keepdims=True)
        q = np.exp(log_posterior(logits, offered))
        d = np.where(offered & (total > 0), q - target / np.maximum(total, 1e-9), 0) / len(at)
        adam.learning_rate = rate * cosine_decay(step, steps)
        adam.step(vjp(d.astype(logits.dtype)))
        net = replace(net, **adam.parameters)
    return net


def log_loss(net: FusionNet, seen: LogView, first: Bools, later: Bools) -> tuple[float, float]:
    """Return the mean negative log-likelihood of the right candidates, and the accuracy.

    The former is over the queries for which a right candidate was offered; 0 without any.
    """
    rows = np.arange(len(seen.recorded))
    members, candidates, ids, offered = fusion_inputs(seen, rows, first, later)
    log_q = log_posterior(fusion_pass(net, members, candidates, ids)[0], offered)
    target = seen.recorded.worth * offered
    total = target.sum(axis=1)
    losses = -(target * np.where(offered, log_q, 0)).sum(axis=1)[total > 0] / total[total > 0]
    right = seen.recorded.worth[rows, log_q.argmax(axis=1)] * offered.any(axis=1)
    return float(losses.sum() / max(len(losses), 1)), float(right.mean())
