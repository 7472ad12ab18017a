"""The ablation: its default is the package's training, hidden parts have no effect, its networks are right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from focalroute.evaluate.training import recorded
from focalroute.learn.nets import DeciderNet, parameters
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.learn.offline.train import (
    train,
)
from focalroute.learn.offline.views import Views, long_run, random_masks
from focalroute.observe import layout
from tests.benchmarks import ablated, ablation, trunk
from tests.evaluate.logs import stream, table_of, write_log, write_pool

PRICES = {"a": 3.0, "b": 2.0, "c": 1.0}
LINES = stream(240, {"a": 0.9, "b": 0.7, "c": 0.6})
SHORT = OfflineSettings(
    fusion_epochs=1,
    lookahead_steps=6,
    iterations=4,
    renew=2,
    finish=1,
    finish_epochs=1,
    queries=16,
    samples=4,
    critic_steps=6,
)
TRUNK = "branching-trunk"


@pytest.fixture
def log(tmp_path: Path) -> RecordedLog:
    """A short log."""
    return recorded(table_of(tmp_path, LINES, PRICES), np.arange(len(LINES)))


def test_the_default_is_what_offline_training_gives(log: RecordedLog) -> None:
    """Array by array, from the same seed."""
    expected = train(log, seed=3, settings=SHORT)
    _, found = ablated.train(log, ablated.Variant(settings=SHORT), 3)
    for one, other in ((expected.decider, found.decider), (expected.fusion, found.fusion)):
        for name, array in parameters(one).items():
            np.testing.assert_array_equal(array, getattr(other, name), name)


def test_hidden_parts_make_no_difference(log: RecordedLog) -> None:
    """Neither to the Decider nor to what the Fusion sees, while what is not hidden does."""
    variant = ablation.VARIANTS["no-standing"]
    rng = np.random.default_rng(0)
    net = replace(DeciderNet.initial(rng, vocabulary=3), out=rng.standard_normal(32).astype(np.float32))
    context = np.zeros((1, layout.width(layout.CONTEXT)), np.float32)
    endpoints = np.zeros((1, 3, layout.width(layout.ENDPOINT)), np.float32)
    plain, _ = variant.passes.decider(net, context, endpoints, np.array([[1, 2, 3]]))
    for name, same in (("relative_skill", True), ("accuracy", False)):
        other = endpoints.copy()
        other[..., layout.slices(layout.ENDPOINT)[name]] = 1
        logits, _ = variant.passes.decider(net, context, other, np.array([[1, 2, 3]]))
        assert np.array_equal(logits, plain) == same
    rows = np.arange(200, 240)
    _, prior = long_run(log, rows)
    windows = ablated.Windows(log, prior, variant, random_masks(log, rng))
    features = windows.at(0, rows).features
    whole = Views.at(windows, 0, rows).features
    member = layout.slices(layout.MEMBER)
    assert not features[..., member["relative_skill"]].any()
    assert whole[..., member["relative_skill"]].any()
    changed = {name for name, at in member.items() if not np.array_equal(features[..., at], whole[..., at])}
    assert changed == {"relative_skill", "evidence"}


def test_votes_weighed_by_the_standing_are_those_of_the_product(log: RecordedLog) -> None:
    """The weights are worked out again where another accuracy is to weigh them; with the same one they are the same."""
    rng, rows = np.random.default_rng(0), np.arange(100, 240)
    _, prior = long_run(log, rows)
    seen = ablated.Windows(log, prior, ablated.Variant(), random_masks(log, rng)).at(0, rows)
    at = layout.slices(layout.ENDPOINT)
    columns = seen.columns.copy()
    columns[..., at["accuracy"]] = columns[..., at["relative_skill"]]
    weighed = ablated.Variant(weighed_by="accuracy").hidden(replace(seen, columns=columns))
    np.testing.assert_allclose(weighed.features, seen.features, atol=1e-5)


def test_the_trunk_has_the_gradients_of_finite_differences() -> None:
    """All of its arrays, in float64."""
    rng = np.random.default_rng(1)
    net = trunk.branching(DeciderNet.initial(rng, vocabulary=3), 3, rng)
    arrays: dict[str, Any] = {name: rng.standard_normal(array.shape) for name, array in parameters(net).items()}
    net = DeciderNet(**arrays)  # in float64, to be exact
    context = rng.standard_normal((5, layout.width(layout.CONTEXT)))
    endpoints = rng.standard_normal((5, 3, layout.width(layout.ENDPOINT)))
    ids, d = np.tile(np.arange(1, 4), (5, 1)), rng.standard_normal((5, 3))
    gradients = trunk.trunk_pass(net, context, endpoints, ids)[1](d)
    assert gradients.keys() == arrays.keys()
    for name, array in arrays.items():
        step = 1e-6 * rng.standard_normal(array.shape)
        ends = [
            (trunk.trunk_pass(replace(net, **{name: array + sign * step}), context, endpoints, ids)[0] * d).sum()
            for sign in (1, -1)
        ]
        assert (ends[0] - ends[1]) / 2 == pytest.approx((gradients[name] * step).sum(), abs=1e-9)


@pytest.mark.slow
def test_variants_are_trained_measured_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a tiny log, one variant of each kind; what is kept is not played again."""
    path, pool = write_log(tmp_path / "log.jsonl", LINES), write_pool(tmp_path / "pool.toml", PRICES)
    names = ("default", "rounds-1", "named", "no-policy-gradient", "scratch", "partial-information", "full-windows")
    short = {name: replace(SHORT, rounds=ablation.VARIANTS[name].settings.rounds) for name in (*names, TRUNK)}
    variants = {name: replace(ablation.VARIANTS[name], settings=settings) for name, settings in short.items()}
    arguments = [str(path), "--pool", str(pool), "--seeds", "1", "--part", "both", "--keep", str(tmp_path / "keep")]
    ablation.main(arguments, variants)
    shown = capsys.readouterr().out
    assert all(shown.count(f"| {name} - ") == 2 for name in variants if name != "default")
    assert shown.count(" - scratch |") == 2 * 2
    assert "test, 48 queries" in shown
    assert len(list((tmp_path / "keep").iterdir())) == len(variants)
    before = (tmp_path / "keep" / "default-0.npz").stat().st_mtime_ns
    ablation.main(arguments, variants)
    assert capsys.readouterr().out == shown
    assert (tmp_path / "keep" / "default-0.npz").stat().st_mtime_ns == before


def test_a_curve_is_read_between_its_points() -> None:
    """Linear in cost; level beyond the dearest point; nothing below the cheapest."""
    worth = np.array([[1.0, 1.0], [0.0, 1.0]])
    curve = ablation.Curve(worth, np.array([[4.0, 4.0], [1.0, 1.0]]), np.array([4.0, 1.0]), 10.0)
    assert curve.at(0.2).tolist() == [0.0, 1.0]
    assert curve.at(0.5).tolist() == pytest.approx([0.5, 1.0])
    assert curve.at(0.9).tolist() == [1.0, 1.0]
    assert np.isnan(curve.at(0.1)).all()


def test_an_interval_draws_seeds_as_well_as_rows() -> None:
    """Two seeds that differ in everything: between 0 and 1; with one seed of equal rows there is nothing to draw."""
    assert ablation.interval(np.stack([np.zeros(120), np.ones(120)])) == (0.0, 1.0)
    assert ablation.interval(np.full((1, 120), 0.3)) == pytest.approx((0.3, 0.3))
