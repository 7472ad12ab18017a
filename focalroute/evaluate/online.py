"""focalroute that goes on learning while it is replayed: updates from a store, as in service, or the Fusion refitted.

Both keep what was answered and said of it in a store of their own, in memory, and see nothing else: never an output
that was not asked for. The next version serves from the turn after the feedback that made it due.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.evaluate.replay import Revealed, Turn
from focalroute.evaluate.serving import Serving, feedback_on
from focalroute.learn.episodes import Costs, episode, rewarded
from focalroute.learn.export import fusion_model, fusion_net
from focalroute.learn.offline.recollect import asked_of, seen_of
from focalroute.learn.offline.stacking import fit
from focalroute.learn.online import update_policy
from focalroute.learn.update_report import UpdateReport
from focalroute.policy.bundle import load
from focalroute.policy.publish import publish
from focalroute.store import Store, open_store


class _Learning(Serving):
    """Serves the policy that is current in a folder, and makes a new version every so many feedbacks.

    Args:
        root: the folder of policies; versions are added to it. There must be one already.
        endpoints: the pool.
        seed: of the sampled decisions, and together with the version's number of what is learned.
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
        """Credit every member, keep the answer and what was said of it, and learn from all of that if it is time."""
        super().learn(turn, revealed)
        if self.stored is None:
            return
        self._store.write(self.stored, feedback_on(self.stored, turn, revealed)).result()
        self._heard += 1
        if self._heard % self._every == 0:
            self._improve(self._store, self._root, np.random.default_rng([self._seed, self._runs]))
            self._runs += 1
            self.policy = load(self._root)

    @abstractmethod
    def _improve(self, store: Store, root: Path, rng: np.random.Generator) -> None:
        """Publish the next version, if there is a better one."""


class Online(_Learning):
    """Learns online exactly as the product does: `update_policy`, its gate included.

    Args:
        given: the folder and the pool, as for `Refitted`; so are ``seed`` and all that is not named here.
        every: as ``update_every`` of the ensemble.

    Attributes:
        reports: what each update came to.
    """

    def __init__(self, *given: Any, every: int = 100, **settings: Any) -> None:
        super().__init__(*given, every=every, **settings)
        self.reports: list[UpdateReport] = []

    def _improve(self, store: Store, root: Path, rng: np.random.Generator) -> None:
        self.reports.append(update_policy(store, root, seed=int(rng.integers(2**31))))


class Refitted(_Learning):
    """The Decider stays as it is; the Fusion is fitted again, from the first one, to everything labelled so far.

    Args:
        root: the folder of policies; versions are added to it. There must be one already.
        endpoints: the pool.
        every: feedbacks between two fits.
        epochs: of a fit.
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
        episodes = [one for answer, said in judged if (one := episode(answer, said, costs)) and one.right is not None]
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
