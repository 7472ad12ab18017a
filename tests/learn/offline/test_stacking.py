"""Training the Fusion: its gradient, the sets it sees, and how far it is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from examples.shipped_policy.training import cold_fusion
from focalroute.learn.backend import NUMPY, open_backend
from focalroute.learn.nets import Floats, FusionNet, Gradients, Vjp, fusion_pass, parameters
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.prior_stats import LongRun
from focalroute.learn.offline.rollout import LogView
from focalroute.learn.offline.stacking import fit, fusion_inputs, log_loss, random_sets
from focalroute.learn.offline.views import Views, long_run, random_masks
from focalroute.learn.trajectory import grown
from tests.learn.made import check_gradients, randomised
from tests.learn.offline.histories import Kind, history, random_history


def seen_of(log: RecordedLog, *, blind: bool = False) -> LogView:
    """Through windows that hold random members, or nobody."""
    everyone = np.arange(len(log))
    masks = random_masks(log, np.random.default_rng(0))
    _, prior = long_run(log, everyone)
    ids = np.arange(1, len(log.names) + 1)
    if blind:
        prior = LongRun(np.zeros(len(log.names)), prior.strengths, prior.usd)
        masks = tuple((np.zeros_like(log.there), np.zeros_like(log.there)) for _ in masks)
    views = Views(log, prior, ids, masks, window=40, probed=0.0)
    return views.at(0, everyone)


def fusion(n: int, seed: int = 1, dtype: type = np.float32) -> FusionNet:
    return randomised(FusionNet.initial(np.random.default_rng(0), vocabulary=n), seed, dtype, 0.3)


def _told(seen: LogView, first: np.ndarray, later: np.ndarray) -> float:
    """Share of the rows in which somebody in the set knew the answer."""
    *_, offered = fusion_inputs(seen, np.arange(len(first)), first, later)
    return float(((seen.recorded.worth * offered).sum(axis=1) > 0).mean())


def test_a_step_goes_down_the_gradient_of_the_loss() -> None:
    """What `fit` pulls back, against finite differences through `log_loss`, over rows that tell something."""
    log = random_history(50)
    seen = seen_of(log)
    seen = replace(seen, features=seen.features.astype(np.float64))
    net = fusion(4, dtype=np.float64)
    rng = np.random.default_rng(2)
    sets = random_sets(log.usable)(np.arange(50), rng)
    caught: list[Gradients] = []

    def watched(net: FusionNet, members: Floats, candidates: Floats, ids: np.ndarray) -> tuple[Floats, Vjp]:
        logits, vjp = fusion_pass(net, members, candidates, ids)

        def kept(d: Floats) -> Gradients:
            caught.append(vjp(d))
            return caught[-1]

        return logits, kept

    def same(rows: np.ndarray, _: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return sets[0][rows], sets[1][rows]

    fit(net, seen, same, epochs=1, rate=1e-3, rng=rng, batch=50, passes=replace(NUMPY, fusion=watched))
    told = _told(seen, *sets)
    assert 0.2 < told < 1

    def loss(arrays: Mapping[str, Floats]) -> float:
        return told * log_loss(replace(net, **arrays), seen, *sets)[0]

    (found,) = caught
    check_gradients(loss, parameters(net), found)


def test_where_no_endpoint_was_asked_there_is_no_loss() -> None:
    """As in the validation part of a short log; it was NaN, with a warning, and nothing could be chosen by it."""
    log = random_history(2)
    unasked = np.zeros((2, 4), np.bool_)
    assert log_loss(fusion(4), seen_of(log), unasked, unasked)[0] == 0


def test_learning_beats_plurality_where_one_is_always_right() -> None:
    kinds = [Kind((0.95,), 1.0), *[Kind((0.4,), 1.0)] * 3]
    log, other = (history(kinds, 400, seed=seed, texts=False) for seed in (0, 1))
    start = grown(cold_fusion(), 4, np.random.default_rng(0))
    sets = random_sets(log.usable)
    learned = fit(start, seen_of(log, blind=True), sets, epochs=20, rate=2e-2, rng=np.random.default_rng(0), batch=64)
    everyone = np.ones((400, 4), np.bool_), np.zeros((400, 4), np.bool_)
    before, after = (log_loss(net, seen_of(other, blind=True), *everyone) for net in (start, learned))
    assert after[0] < before[0] - 0.05
    assert after[1] >= 0.9


def test_random_sets_are_of_one_size_and_prefer_endpoints_that_answer() -> None:
    usable = np.random.default_rng(0).random((200, 8)) < 0.7
    rng = np.random.default_rng(1)
    sizes = []
    for _ in range(100):
        first, later = random_sets(usable)(np.arange(200), rng)
        assert not (first & later).any()
        (size,) = set((first | later).sum(axis=1).tolist())
        sizes.append(size)
        enough = usable.sum(axis=1) >= size
        assert not ((first | later) & ~usable)[enough].any()
    assert set(sizes) == {1, 2, 3, 4, 6, 8}
    assert 2 <= sizes.count(8) <= 25
    assert random_sets(usable, everyone=1.0)(np.arange(200), rng)[0].shape == (200, 8)
    few = random_sets(usable[:, :2], everyone=0.0)(np.arange(200), rng)
    assert (few[0] | few[1]).sum(axis=1).max() <= 2


def test_a_step_by_torch_is_the_same() -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra train)")
    log = random_history(40)
    seen = seen_of(log)
    seen = replace(seen, features=seen.features.astype(np.float64))
    net = fusion(4, dtype=np.float64)
    one, other = (
        fit(net, seen, random_sets(log.usable), epochs=1, rate=1e-3, rng=np.random.default_rng(0), passes=engine)
        for engine in (NUMPY, open_backend("torch"))
    )
    for name, array in parameters(one).items():
        np.testing.assert_allclose(parameters(other)[name], array, atol=1e-6, err_msg=name)
