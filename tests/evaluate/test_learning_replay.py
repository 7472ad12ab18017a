"""Learning online while replayed: versions are published and served, and only what was asked is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.shipped_policy.training import cold_fusion
from focalroute.evaluate.replay import ReplayResult, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.trajectory import grown
from focalroute.policy.bundle import cold, load, versions
from focalroute.policy.publish import publish
from tests.benchmarks.learning_replay import Online, Refitted
from tests.benchmarks.online import WAYS, served
from tests.by_hand import linear_decider
from tests.evaluate.logs import stream, table_of

PRICES = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
BEFORE = {"a": 0.9, "b": 0.6, "c": 0.5, "d": 0.4}


def believing_in(first: int, root: Path) -> Path:
    """A policy that asks all and believes one endpoint, as if it had been trained where that one is right."""
    decider, fusion = linear_decider(), cold_fusion()
    decider.bias[:] += 30  # never less than everybody
    names, rng = tuple(PRICES), np.random.default_rng(0)
    decider, fusion = grown(decider, len(names), rng), grown(fusion, len(names), rng)
    fusion.vote[first + 1] = 3
    publish(root, decider=decider_model(decider), fusion=fusion_model(fusion), names=names, parent=None)
    return root


def turning(folder: Path) -> LogTable:
    """400 queries on which "a" is good, then 800 on which "b" is and "a" is not."""
    lines = [*stream(400, BEFORE), *stream(800, {**BEFORE, "a": 0.1, "b": 0.9}, seed=1)]
    for n, line in enumerate(lines):
        line["id"] = str(n)
    return table_of(folder, lines, PRICES)


def online(root: Path, table: LogTable, count: int, *, explore: bool = False) -> tuple[Online, ReplayResult]:
    """A stream with an update every hundred feedbacks; all else as it is by default."""
    with Online(root, table.endpoints, seed=0, explore=explore) as strategy:
        return strategy, play(strategy, table, np.arange(count))


@pytest.mark.slow
def test_it_tries_versions_out_and_serves_those_that_are_better(tmp_path: Path) -> None:
    """An update every hundred feedbacks: learned, tried, published; greedy ones leave the Decider alone."""
    root = believing_in(0, tmp_path / "policy")
    strategy, _ = online(root, turning(tmp_path), 1000)
    said = [report.status for report in strategy.reports]
    assert len(said) == 10
    assert said[0] == "on trial"
    assert "published" in said
    assert strategy.policy.version == load(root).version > 1
    assert load(root).decider_onnx == load(root, 1).decider_onnx
    assert load(root).fusion_onnx != load(root, 1).fusion_onnx


@pytest.mark.slow
def test_where_the_networks_are_wrong_and_the_members_fixed_online_beats_frozen(tmp_path: Path) -> None:
    """A made-up case, to see that updates reach what is served: vote weights that drift made wrong, everybody asked."""
    table = turning(tmp_path)
    root = believing_in(0, tmp_path / "policy")
    frozen = play(Serving(load(root), table.endpoints, seed=0, explore=False), table, np.arange(1200))
    _, learned = online(root, table, 1200)
    assert learned.usd.sum() == pytest.approx(frozen.usd.sum())
    assert learned.worth[:300].tolist() == frozen.worth[:300].tolist()
    assert learned.worth[400:].mean() > frozen.worth[400:].mean() + 0.04
    assert learned.worth[1000:].mean() > frozen.worth[1000:].mean() + 0.1


@pytest.mark.slow
def test_the_refitted_fusion_learns_and_the_decider_stays(tmp_path: Path) -> None:
    """The policy believes one that is mostly wrong here; choices that recur would show that, too."""
    lines = stream(300, {**BEFORE, "a": 0.1, "b": 0.9})
    own = [line | {"choices": [f"{choice} of {line['id']}" for choice in line["choices"]]} for line in lines]
    table = table_of(tmp_path, own, PRICES)
    root = believing_in(0, tmp_path / "policy")
    settings: dict[str, Any] = {"seed": 0, "explore": False, "probe_share": 0.0, "detect": False}
    frozen = play(Serving(load(root), table.endpoints, **settings), table, np.arange(300))
    with Refitted(root, table.endpoints, every=150, rate=0.02, **settings) as strategy:
        played = play(strategy, table, np.arange(300))
    assert versions(root) == (1, 2, 3)
    assert load(root).decider_onnx == load(root, 1).decider_onnx
    assert played.worth[:150].tolist() == frozen.worth[:150].tolist()
    assert played.worth[150:].mean() > frozen.worth[150:].mean() + 0.1


@pytest.mark.parametrize("kind", [pytest.param(Online, marks=pytest.mark.slow), Refitted])
def test_it_sees_only_what_it_asked_for(tmp_path: Path, kind: type[Online | Refitted]) -> None:
    """With every output that was not asked for changed, it does the same."""
    table = table_of(tmp_path, stream(150, BEFORE), PRICES)
    roots = [tmp_path / "one", tmp_path / "other"]
    for root in roots:
        publish(
            root, decider=decider_model(linear_decider()), fusion=fusion_model(cold_fusion()), names=(), parent=None
        )
    with kind(roots[0], table.endpoints, seed=0, every=100) as strategy:
        first = play(strategy, table, np.arange(150))
    lines = stream(150, BEFORE)
    for row, line in enumerate(lines):
        for i, name in enumerate(PRICES):
            if not first.asked[row, i]:
                line["outputs"][name]["answer"] = 2
    other = table_of(tmp_path, lines, PRICES)
    with kind(roots[1], other.endpoints, seed=0, every=100) as strategy:
        again = play(strategy, other, np.arange(150))
    assert again.asked.tolist() == first.asked.tolist()
    assert again.worth.tolist() == first.worth.tolist()
    assert (load(roots[0]).version, load(roots[0]).fusion_onnx) == (load(roots[1]).version, load(roots[1]).fusion_onnx)


def test_the_same_seed_gives_the_same_play(tmp_path: Path) -> None:
    """Sampled decisions, updates and all."""
    table = table_of(tmp_path, stream(150, BEFORE), PRICES)
    found = []
    for name in ("one", "other"):
        root = tmp_path / name
        publish(
            root, decider=decider_model(linear_decider()), fusion=fusion_model(cold_fusion()), names=(), parent=None
        )
        _, played = online(root, table, 150, explore=True)
        latest = max(versions(root))
        found.append((latest, load(root, latest).decider_onnx, played.asked.tolist()))
    assert found[0] == found[1]
    assert found[0][0] > 1


@pytest.mark.slow
@pytest.mark.parametrize(("way", "point"), [(way, 0.3 if way == "still" else 0.4) for way in WAYS])
def test_every_way_of_the_benchmark_holds_its_cost_and_leaves_the_policy_as_it_was(
    tmp_path: Path, way: str, point: float
) -> None:
    """What `tests.benchmarks.online` compares: the same start, the same share of what asking all costs.

    Where nothing is learned, one endpoint may be believed so much that no weight spends 0.4.
    """
    table = table_of(tmp_path, stream(700, dict.fromkeys(PRICES, 0.6)), PRICES)
    shipped, root = cold(), tmp_path / "policy"
    publish(root, decider=shipped.decider_onnx, fusion=shipped.fusion_onnx, names=(), parent=None)
    test = np.arange(100, 700)
    played = served(way, table, root, test, {"seed": 0, "explore": True}, point=point, every=100)
    assert len(played.worth) == 600
    assert played.usd.sum() / table.usd[test].sum() == pytest.approx(point, abs=0.03)
    assert versions(root) == (1,)
