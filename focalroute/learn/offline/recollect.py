"""What was asked and labelled in service, as recorded queries: evidence as it was seen, of those asked only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from focalroute.learn.episodes import Episode
from focalroute.learn.offline.recorded import F32, I64, Bools, Recorded
from focalroute.learn.offline.rollout import Seen
from focalroute.learn.offline.stacking import Sets
from focalroute.observe import layout

_MEMBER = layout.slices(layout.MEMBER)


def seen_of(episodes: Sequence[Episode], ids: I64) -> Seen:
    """The episodes as `focalroute.learn.offline.stacking.fit` needs them; what only a Decider would look at is zero.

    Args:
        episodes: at least one, all of one pool.
        ids: (N,) the endpoints' rows in the nets' tables.
    """
    names = episodes[0].trajectory.endpoints
    size, n = len(episodes), len(names)
    k = max(len(one.trajectory.evidence.candidates) for one in episodes)
    features = np.zeros((size, k, n, layout.width(layout.MEMBER)), np.float32)
    worth, candidate = np.zeros((size, k), np.float32), np.full((size, n), -1)
    for row, one in enumerate(episodes):
        evidence = one.trajectory.evidence
        members, who = evidence.members, list(evidence.endpoints)
        features[row, : len(members)][:, who] = members
        candidate[row, who] = members[..., _MEMBER["vote"].start].argmax(axis=0)
        if one.right is not None:
            worth[row, one.right] = 1
    return Seen(
        recorded=_recorded(names, candidate, worth, [len(one.trajectory.evidence.candidates) for one in episodes]),
        columns=_none(size, n, layout.width(layout.ENDPOINT)),
        shares=_none(size, n),
        level=_none(size),
        pairs=_none(size, n, n),
        features=features,
        ids=ids,
    )


def asked_of(episodes: Sequence[Episode]) -> Sets:
    """Of each episode those who answered, in round 1 and later."""
    n = len(episodes[0].trajectory.endpoints)
    first, later = (np.zeros((len(episodes), n), np.bool_) for _ in range(2))
    for row, one in enumerate(episodes):
        evidence = one.trajectory.evidence
        after = evidence.members[..., _MEMBER["later"].start].max(axis=0)
        for endpoint, late in zip(evidence.endpoints, after.tolist(), strict=True):
            (later if late else first)[row, endpoint] = True

    def asked(rows: I64, _: np.random.Generator) -> tuple[Bools, Bools]:
        return first[rows], later[rows]

    return asked


def _recorded(names: tuple[str, ...], candidate: I64, worth: F32, sizes: Sequence[int]) -> Recorded:
    size, n = candidate.shape
    there: Bools = candidate >= 0
    right = np.take_along_axis(worth, np.maximum(candidate, 0), axis=1) * there
    return Recorded(
        names=names,
        prices=np.full(n, np.nan),
        there=there,
        replied=there,
        candidate=candidate,
        size=np.array(sizes, np.int64),
        closed=np.ones(size, np.bool_),
        value=right,
        worth=worth,
        usd=_none(size, n),
        tokens=_none(size, n),
        latency_s=_none(size, n),
        mass=None,
        vectors=_none(size, 0),
    )


def _none(*shape: int) -> F32:
    return np.zeros(shape, np.float32)
