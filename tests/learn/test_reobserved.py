"""The observation that the Decider saw can be recomputed from the store: over real HTTP, as in service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from focalroute import Ensemble
from focalroute.core.records import Trajectory
from focalroute.learn.export import fusion_net
from focalroute.learn.gate import reobserved
from focalroute.learn.nets import FusionNet
from focalroute.learn.trajectory import Episode, batch
from focalroute.policy.bundle import cold
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from focalroute.store import open_store


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    models = [SimulatedModel(f"m{i}", skill=0.5 + 0.1 * i, sharpness=2) for i in range(4)]
    with SimulatedPool(models) as running:
        yield running


@pytest.fixture(scope="module")
def seen(pool: SimulatedPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Episode]]:
    """By kind of question, what was decided on at least once after a reply."""
    found: dict[str, list[Episode]] = {}
    questions = list(stream(30, seed=1, topics=["multi-hop", "arithmetic"]))
    path = tmp_path_factory.mktemp("store") / "s.db"
    for kind in ("choices", "number", "open"):
        with Ensemble(pool.endpoints, store=path, seed=0, cost_weight=0.005, probe_share=0) as ensemble:
            of_kind: dict[str, Any] = {"number": {"answer": "number"}, "open": {}}
            ids = [ensemble.ask(q.text, **of_kind.get(kind, {"choices": q.choices})).id for q in questions]
        with closing(open_store(path)) as store:
            stored = [store.answer(one) for one in ids]
        trajectories = [one.trajectory for one in stored if one is not None and one.trajectory is not None]
        found[kind] = [as_episode(one) for one in trajectories]
        assert any(len(one.decisions) > 1 for one in trajectories)
    return found


def as_episode(trajectory: Trajectory) -> Episode:
    return Episode("", trajectory, (0.0,) * len(trajectory.decisions), 1.0, None, labelled=False)


def known(episodes: list[Episode], other: FusionNet | None = None) -> tuple[float, float]:
    """The share of later decisions whose context is known, and how far at most it is from what was stored."""
    made = (
        batch(episodes, (), greedy=True)
        if not episodes
        else batch(episodes, episodes[0].trajectory.endpoints, greedy=True)
    )
    rows = np.zeros_like(made.fusions.ids)  # the shipped policy knows no name
    served = fusion_net(cold().fusion_onnx)
    fusions = replace(made.fusions, ids=rows)
    context, sure = reobserved(episodes, made.decisions, fusions, served, other or served)
    later = made.decisions.place > 0
    return float(sure[later].mean()), float(np.abs(context - made.decisions.context)[sure].max())


@pytest.mark.parametrize("kind", ["choices", "number"])
def test_the_fusion_that_served_shows_what_was_shown(seen: dict[str, list[Episode]], kind: str) -> None:
    share, off = known(seen[kind])
    assert share == 1
    assert off < 1e-3


def test_another_fusion_shows_something_else(seen: dict[str, list[Episode]]) -> None:
    served = fusion_net(cold().fusion_onnx)
    _, off = known(seen["choices"], replace(served, skip_member=served.skip_member * 0))
    assert off > 0.1


def test_some_open_texts_cannot_be_reobserved_and_it_says_so(seen: dict[str, list[Episode]]) -> None:
    share, off = known(seen["open"])
    assert share < 1
    assert off < 1e-3
