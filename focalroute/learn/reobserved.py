"""Makes what the Decider would have been shown between rounds, had another Fusion made the posterior.

A Fusion decides not only which answer is given but, through its posterior, also whether more is asked. Everything that
goes into that posterior is stored with the answer, so it can be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from focalroute.learn.episodes import Episode
from focalroute.learn.losses import log_posterior
from focalroute.learn.nets import F32, I64, FusionNet
from focalroute.learn.trajectory import Bools, Decisions, Fusions
from focalroute.observe import layout
from focalroute.observe.observation import OPEN_CHOICES, odds_of, posterior_columns

_CONTEXT = layout.slices(layout.CONTEXT)
_SHOWN = slice(_CONTEXT["posterior"].start, _CONTEXT["entropy"].stop)
_CHOICES, _REPLIED = _CONTEXT["choices"].start, layout.slices(layout.ENDPOINT)["replied"].start
_MEMBER = layout.slices(layout.MEMBER)
_VOTE, _PROBABILITY, _EVIDENCE = (_MEMBER[name].start for name in ("vote", "probability", "evidence"))
_LARGEST = 4
_EQUAL = 1e-3  # between what single and double precision make of the same


def reobserved(
    episodes: Sequence[Episode], decisions: Decisions, fusions: Fusions, served: FusionNet, other: FusionNet
) -> tuple[F32, Bools]:
    """The contexts of these decisions as the other Fusion would have made them.

    Args:
        episodes: those that ``decisions`` and ``fusions`` are of.
        decisions: S of them, greedy ones included; ``episode`` and ``place`` say which each is.
        served: the Fusion that made the posterior which was stored.
        other: the other one, whose tables have the same rows.

    Returns:
        (S, Dc) the contexts, and (S,) whether each is known: what ``served`` makes of it is what was stored.
        Open texts, which are compared with each other, are not.
    """
    context, known = decisions.context.copy(), np.ones(len(decisions.context), np.bool_)
    replied = _replied(episodes, decisions, fusions.members.shape[2])
    later = np.flatnonzero(replied.any(axis=1))
    if len(later):
        rows = decisions.episode[later]
        pools = np.array([len(episodes[row].trajectory.endpoints) for row in rows])
        seen = _Seen(fusions, rows, replied[later], context[later, _CHOICES] > 0, pools)
        known[later] = np.abs(seen.shown(served) - context[later, _SHOWN]).max(axis=1) < _EQUAL
        context[later, _SHOWN] = seen.shown(other)
    return context, known


def _replied(episodes: Sequence[Episode], decisions: Decisions, most: int) -> Bools:
    """(S, m) which of the members that the Fusion saw at the end had replied before each decision."""
    replied = np.zeros((len(decisions.episode), most), np.bool_)
    for s, (row, place) in enumerate(zip(decisions.episode, decisions.place, strict=True)):
        trajectory = episodes[row].trajectory
        members = list(trajectory.evidence.endpoints)
        replied[s, : len(members)] = trajectory.decisions[place][0].endpoints[members, _REPLIED] > 0
    return replied


class _Seen:
    """The replies that the Fusion saw after some round, as arrays; letters as in `Fusions`."""

    def __init__(self, fusions: Fusions, rows: I64, replied: Bools, closed: Bools, pools: I64) -> None:
        members = fusions.members[rows] * replied[:, None, :, None]
        said = (members[..., _VOTE] > 0) | (members[..., _PROBABILITY] > 0)
        self._offered = fusions.offered[rows] & (closed[:, None] | said.any(axis=2))
        self._members, self._ids, self._closed = members, fusions.ids[rows], closed
        number, self._size = replied.sum(axis=1), self._offered.sum(axis=1)
        candidates = np.zeros((*self._offered.shape, fusions.candidates.shape[2]), np.float32)
        candidates[..., :2] = members[..., [_VOTE, _PROBABILITY]].sum(axis=2) / number[:, None, None]
        candidates[..., 2] = np.log(self._size)[:, None] / 4
        candidates[..., 3] = (number / pools)[:, None]
        self._candidates = candidates * self._offered[..., None]

    def shown(self, fusion: FusionNet) -> F32:
        """(S, 6) the columns of the context that a posterior fills, as `AskView.see` does."""
        logits = fusion.forward(self._members, self._candidates, self._ids)
        p = np.where(self._offered, np.exp(log_posterior(logits, self._offered)), 0)
        odds = np.where(self._offered, odds_of(self._members[..., _EVIDENCE].sum(axis=2)), 0).sum(axis=1)
        unseen = np.where(self._closed, 0, np.maximum(OPEN_CHOICES - self._size, 1))
        none = unseen / (odds + unseen)
        each = none / np.maximum(unseen, 1)
        spread = np.where(np.arange(OPEN_CHOICES) < unseen[:, None], each[:, None], 0)
        p = np.concatenate([p * (1 - none)[:, None], spread], axis=1)
        largest = -np.sort(-p, axis=1)[:, :_LARGEST]
        p_log_p = (p * np.log(np.maximum(p, 1e-300))).sum(axis=1)
        columns = posterior_columns(tuple(largest.T), p_log_p, np.log(np.maximum(self._size + unseen, 2)))
        return np.stack(columns, axis=1).astype(np.float32)
