"""Rollouts: the distribution of decisions, which endpoints are asked, and the cost."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from focalroute.learn.losses import likelihood
from focalroute.learn.nets import DeciderNet, FusionNet
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.prior_stats import compute_prior_stats, expected
from focalroute.learn.offline.rollout import LogView, Rollout, log_view, roll
from focalroute.learn.offline.views import long_run
from focalroute.learn.trajectory import HeadBatch
from focalroute.policy.decider import decide
from tests.learn.made import randomised
from tests.learn.offline.histories import random_history


def _seen(log: RecordedLog, seed: int = 5) -> LogView:
    rng = np.random.default_rng(seed)
    first = rng.random(log.there.shape) < 0.5
    _, prior = long_run(log, np.arange(len(log)))
    prior_stats = compute_prior_stats(log, first & log.there, np.zeros_like(first), prior, window=40)
    return log_view(log, prior_stats, expected(log), np.arange(len(log)), np.arange(1, len(log.names) + 1))


def _nets(n: int, seed: int = 0, scale: float = 0.4) -> tuple[DeciderNet, FusionNet]:
    rng = np.random.default_rng(seed)
    decider = randomised(DeciderNet.initial(rng, vocabulary=n), seed, np.float32, scale)
    return decider, randomised(FusionNet.initial(rng, vocabulary=n), seed + 1, np.float32, scale)


def _rolled(
    seen: LogView,
    nets: tuple[DeciderNet, FusionNet],
    *,
    rounds: int = 3,
    samples: int = 1,
    rng: np.random.Generator | None = None,
    ask_all_usd: float = 2.0,
) -> Rollout:
    prices = np.full(len(seen.recorded), 0.1, np.float32)
    return roll(*nets, seen, cost_weight=prices, ask_all_usd=ask_all_usd, rounds=rounds, samples=samples, rng=rng)


def _one(log: RecordedLog, row: int) -> LogView:
    seen = _seen(log)
    one = np.array([row])
    return replace(
        seen,
        recorded=log.take(one),
        **{name: getattr(seen, name)[one] for name in ("columns", "shares", "level", "pairs", "features")},
    )


@pytest.mark.parametrize("scale", [0.4, 3.0])
def test_sets_are_sampled_from_the_law_of_the_decider(scale: float) -> None:
    """Every set of 4 heads, one of them absent, by `likelihood`: they sum to 1, and come up as often as they should.

    At the larger scale the heads lie beyond the clip.
    """
    log = random_history(30)
    row = int(np.flatnonzero(log.there.sum(axis=1) == 3)[0])
    seen, nets = _one(log, row), _nets(4, 2, scale)
    size = 40_000
    played = _rolled(seen, nets, rounds=1, samples=size, rng=np.random.default_rng(0))
    logits = played.steps[0].logits[:1]
    sets = [np.array(x, np.bool_) for x in product((False, True), repeat=4) if any(x)]
    possible = [x for x in sets if not (x & ~log.there[row]).any()]
    counts = Counter(x.tobytes() for x in played.first)
    heads = [HeadBatch(log.there[row : row + 1], log.there[row : row + 1], x[None], np.ones(1, np.bool_), np.full(1, 4))
             for x in possible]  # fmt: skip
    chances = [float(np.exp(likelihood(logits, one).log_pi[0])) for one in heads]
    assert sum(chances) == pytest.approx(1)
    assert sum(counts[x.tobytes()] for x in possible) == size
    for x, chance in zip(possible, chances, strict=True):
        assert counts[x.tobytes()] / size == pytest.approx(chance, abs=5 * np.sqrt(chance / size))


def test_the_log_probability_is_that_of_the_decider() -> None:
    """Of the decisions that `decide` samples in service, visited in any order."""
    rng, n = random.Random(0), 5
    logits = np.random.default_rng(1).normal(0, 2, n).astype(np.float32)
    for must in (True, False):
        for _ in range(50):
            order = rng.sample(range(n), n)
            made = decide(logits, round=1, must_pick=must, order=order, eligible=lambda *_: True, explore=True, rng=rng)
            picked = np.isin(np.arange(n), made.picked)[None]
            everyone = np.ones((1, n), np.bool_)
            distribution = likelihood(
                logits[None], HeadBatch(everyone, everyone, picked, np.array([must]), np.full(1, n))
            )
            assert made.log_mu == pytest.approx(distribution.log_pi[0], abs=1e-6)


@pytest.mark.parametrize("shift", [0.0, -30.0])
def test_greedy_decisions_are_those_of_the_decider(shift: float) -> None:
    """Also where all heads lie beyond the clip: whoever must answer is the likeliest by its logit."""
    log = random_history(60)
    decider, fusion = _nets(4, 3)
    decider = replace(decider, bias=decider.bias + np.float32(shift))
    played = _rolled(_seen(log), (decider, fusion), rounds=1)
    first = played.steps[0]
    for row, logits in enumerate(first.logits):
        made = decide(
            logits,
            round=1,
            must_pick=True,
            order=np.flatnonzero(log.there[row]).tolist(),
            eligible=lambda *_: True,
            explore=False,
            rng=random.Random(0),
        )
        assert set(made.picked) == set(np.flatnonzero(first.heads.picked[row]).tolist())


def test_a_rollout_asks_each_endpoint_once_and_none_that_is_absent() -> None:
    log = random_history(60)
    played = _rolled(_seen(log), _nets(4), samples=5, rng=np.random.default_rng(0))
    of = np.repeat(np.arange(60), 5)
    assert not (played.first & played.later).any()
    assert not ((played.first | played.later) & ~log.there[of]).any()
    assert played.first.any(axis=1).all()
    assert played.later.any()
    picks = np.zeros_like(played.first, np.int64)
    for step in played.steps:
        picks[step.rows] += step.heads.picked
    np.testing.assert_array_equal(picks, (played.first | played.later).astype(int))


def test_costs_and_worth_of_a_rollout() -> None:
    log = random_history(60)
    played = _rolled(_seen(log), _nets(4), samples=3, rng=np.random.default_rng(0))
    of = np.repeat(np.arange(60), 3)
    paid = (log.usd[of] * (played.first | played.later)).sum(axis=1)
    np.testing.assert_allclose(played.shares.sum(axis=0), paid / 2, rtol=1e-5)
    answered = (log.usable[of] & (played.first | played.later)).any(axis=1)
    np.testing.assert_array_equal(played.answer >= 0, answered)
    np.testing.assert_array_equal(
        played.worth, np.where(answered, log.worth[of, np.maximum(played.answer, 0)], 0).astype(np.float32)
    )
    np.testing.assert_allclose(played.posterior[answered].sum(axis=1), 1, atol=1e-5)


def test_after_the_last_round_it_goes_on_only_where_no_endpoint_answered() -> None:
    log = random_history(200, seed=4)
    log = replace(log, candidate=np.where(np.random.default_rng(0).random(log.there.shape) < 0.6, -1, log.candidate))
    played = _rolled(_seen(log), _nets(4), rounds=1, samples=2, rng=np.random.default_rng(0))
    of = np.repeat(np.arange(200), 2)
    at_first = (played.first & log.usable[of]).any(axis=1)
    assert not played.later[at_first].any()
    silent = ~at_first & ~(played.later & log.usable[of]).any(axis=1)
    np.testing.assert_array_equal((played.first | played.later)[silent], log.there[of][silent])
    assert (played.answer[~at_first & ~silent] >= 0).all()
    assert len(played.steps) > 1
    assert len(played.shares) == len(played.steps)


def test_steep_logits_and_a_free_pool_stay_finite() -> None:
    log = random_history(30)
    decider, fusion = _nets(4)
    steep = replace(decider, bias=np.full(1, -500, np.float32))
    free = replace(log, usd=np.zeros_like(log.usd))
    with np.errstate(all="raise", under="ignore"):
        played = _rolled(_seen(free), (steep, fusion), rng=np.random.default_rng(0), ask_all_usd=0.0)
    assert not played.shares.any()
