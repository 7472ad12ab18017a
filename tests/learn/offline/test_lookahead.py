"""The gain of asking one more member, and the Decider fitted to it by regression."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from examples.shipped_policy.training import cold_fusion
from focalroute.learn.backend import NUMPY
from focalroute.learn.nets import DeciderNet, fusion_pass, parameters
from focalroute.learn.offline.lookahead import gains, look_ahead
from focalroute.learn.offline.rollout import roll
from focalroute.learn.offline.stacking import fusion_inputs
from focalroute.learn.offline.views import Views, long_run, random_masks
from focalroute.learn.trajectory import grown
from tests.learn.offline.histories import Kind, history, random_history
from tests.learn.offline.test_stacking import fusion, seen_of


def test_gains_are_what_asking_one_more_adds() -> None:
    """By brute force: fuse without and with each endpoint, which comes in a later round unless nobody answered yet."""
    log = random_history(60)
    seen, net = seen_of(log), fusion(4)
    rng = np.random.default_rng(0)
    asked = rng.random(log.there.shape) < 0.35
    later = asked & (rng.random(asked.shape) < 0.4)
    first = asked & ~later
    gain, posterior, offered = gains(net, seen, first, later)

    def worth(row: int, first: np.ndarray, later: np.ndarray) -> float:
        members, candidates, ids, some = fusion_inputs(seen, np.array([row]), first[None], later[None])
        score = np.where(some, fusion_pass(net, members, candidates, ids)[0], -np.inf)[0]
        return float(log.worth[row, score.argmax()]) if some.any() else 0.0

    for row in range(60):
        nobody = not (asked[row] & log.usable[row]).any()
        before = worth(row, first[row], later[row])
        for i in range(4):
            with_it = [first[row].copy(), later[row].copy()]
            if not asked[row, i]:
                with_it[0 if nobody else 1][i] = True
            assert gain[row, i] == worth(row, *with_it) - before, (row, i)
        assert offered[row].any() != nobody
        assert nobody or abs(posterior[row].sum() - 1) < 1e-5
    assert {-1.0, 0.0, 1.0} <= set(gain.ravel().tolist())


def test_it_asks_the_endpoints_that_are_worth_their_price() -> None:
    """A good one and two that are rarely right: dear enough, only the good one is asked; at no price more are."""
    kinds = [Kind((0.3,), 1.0), Kind((0.95,), 1.0), Kind((0.3,), 1.0)]
    log = history(kinds, 300, seed=0, texts=False)
    rng = np.random.default_rng(0)
    _, prior = long_run(log, np.arange(300))
    views = Views(log, prior, np.arange(1, 4), random_masks(log, rng), window=100, probed=0.0)
    start = DeciderNet.initial(rng, vocabulary=3)
    start = replace(start, names=rng.standard_normal(start.names.shape).astype(np.float32))
    floor = grown(cold_fusion(), 3, rng)
    steps: list[int] = []
    decider = look_ahead(
        start,
        floor,
        [(views, np.arange(300))],
        steps=150,
        rate=5e-3,
        batch=64,
        rng=rng,
        passes=NUMPY,
        advance=steps.append,
    )
    assert steps == [1] * 150
    assert parameters(decider)["names"].shape == start.names.shape
    seen = views.at(0, np.arange(100, 300))
    played = roll(
        decider,
        floor,
        seen,
        cost_weight=np.full(200, 0.2, np.float32),
        ask_all_usd=3.0,
        rounds=3,
        samples=1,
        rng=None,
    )
    assert played.first[:, 1].mean() > 0.95
    assert (played.first | played.later).sum(axis=1).mean() < 1.3
