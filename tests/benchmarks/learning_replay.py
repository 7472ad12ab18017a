"""Replays focalroute while its networks go on learning: by online updates as in service, or by refitting the Fusion.

Both store answers and feedback in memory, and learn only from these, never from outputs that were not asked for. A new
version serves from the turn after the feedback that made it due.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.records import F32, I64, Bools
from focalroute.evaluate.replay import Revealed, Turn
from focalroute.evaluate.serving import Serving, feedback_on
from focalroute.learn.export import fusion_model, fusion_net
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.rollout import LogView
from focalroute.learn.offline.stacking import Sets, fit
from focalroute.learn.online import update_policy
from focalroute.learn.trajectory import Costs, Episode, episode, rewarded
from focalroute.learn.update_report import UpdateReport
from focalroute.observe import layout
from focalroute.policy.bundle import challenger, load
from focalroute.policy.publish import publish
from focalroute.store import Store, open_store

_MEMBER = layout.slices(layout.MEMBER)


class _Learning(Serving):
    """Serves the current policy of a folder, and makes a new version after every ``every`` feedbacks.

    Args:
        root: the folder of policies; versions are added to it. There must be one already.
        endpoints: the pool.
        seed: the seed of sampled decisions and of learning.
        every: feedbacks between two versions.
        settings: as for `Serving`.
    """

    def __init__(self, root: Path, endpoints: Sequence[Endpoint], *, seed: int, every: int, **settings: Any) -> None:
        super().__init__(load(root), endpoints, seed=seed, **settings)
        self._root = root
        self._every = every
        self._heard = 0
        self._runs = 0
        self._store = open_store(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        """Store the answer and its feedback, and make a new version if it is due."""
        super().learn(turn, revealed)
        if turn.memo is None:
            return
        self._store.write(turn.memo, feedback_on(turn.memo, turn, revealed)).result()
        self._heard += 1
        if self._heard % self._every == 0:
            self._improve(self._store, self._root, np.random.default_rng([self._seed, self._runs]))
            self._runs += 1
            self.policy, rival = load(self._root), challenger(self._root)
            self.challenger = None if rival is None else load(self._root, rival)

    @abstractmethod
    def _improve(self, store: Store, root: Path, rng: np.random.Generator) -> None:
        """Publish the next version, if there is a better one."""


class Online(_Learning):
    """Learns online exactly as an ensemble does, by `update_policy` with its gate.

    Args:
        given: the folder and the pool, as for `_Learning`.
        every: feedbacks between two updates, as ``update_every`` of the ensemble.
        settings: as for `_Learning`.

    Attributes:
        reports: the report of each update.
    """

    def __init__(self, *given: Any, every: int = 100, **settings: Any) -> None:
        super().__init__(*given, every=every, **settings)
        self.reports: list[UpdateReport] = []

    def _improve(self, store: Store, root: Path, rng: np.random.Generator) -> None:
        self.reports.append(update_policy(store, root, seed=int(rng.integers(2**31))))


class Refitted(_Learning):
    """Keeps the Decider, and refits the Fusion, from the first one, to everything labelled so far.

    Args:
        root: the folder of policies; versions are added to it. There must be one already.
        endpoints: the pool.
        every: feedbacks between two fits.
        epochs: epochs of a fit.
        rate: Adam's learning rate at its start.
        settings: as for `focalroute.evaluate.serving.Serving`.
    """

    def __init__(self, *given: Any, every: int = 500, epochs: int = 4, rate: float = 5e-4, **settings: Any) -> None:
        super().__init__(*given, every=every, **settings)
        self._first = load(self._root)
        self._epochs = epochs
        self._rate = rate

    def _improve(self, store: Store, root: Path, rng: np.random.Generator) -> None:
        judged = rewarded(store.recent(self._heard))
        costs = Costs({})
        read = (episode(row.answer, row.feedback, costs) for row in judged)
        episodes = [one for one in read if one is not None and one.right is not None]
        if not episodes:
            return
        first = self._first
        seen = seen_of(episodes, first.ids(self._names))
        net = fit(
            fusion_net(first.fusion_onnx), seen, asked_of(episodes), epochs=self._epochs, rate=self._rate, rng=rng
        )
        publish(
            root,
            decider=first.decider_onnx,
            fusion=fusion_model(net),
            names=first.names,
            parent=self.policy.version,
            experience=first.experience,
        )


def seen_of(episodes: Sequence[Episode], ids: I64) -> LogView:
    """Return episodes as `focalroute.learn.offline.stacking.fit` takes them; what only the Decider sees is zero.

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
    return LogView(
        recorded=_recorded(names, candidate, worth, [len(one.trajectory.evidence.candidates) for one in episodes]),
        columns=_none(size, n, layout.width(layout.ENDPOINT)),
        shares=_none(size, n),
        cost_factors=_none(size, n),
        departure=np.zeros((size, n)),
        level=_none(size),
        pairs=_none(size, n, n),
        features=features,
        ids=ids,
    )


def asked_of(episodes: Sequence[Episode]) -> Sets:
    """Return the sets of members that answered in round 1, and later, in each episode."""
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


def _recorded(names: tuple[str, ...], candidate: I64, worth: F32, sizes: Sequence[int]) -> RecordedLog:
    size, n = candidate.shape
    there: Bools = candidate >= 0
    right = np.take_along_axis(worth, np.maximum(candidate, 0), axis=1) * there
    return RecordedLog(
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
