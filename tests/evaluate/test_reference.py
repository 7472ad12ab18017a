"""Simple methods on real recorded answers give the figures that were published with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from focalroute.core.pool import load_pool
from focalroute.evaluate.baselines import BASELINES, best_in_hindsight, oracle
from focalroute.evaluate.metrics import score
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.replay import ReplayResult, Training, play
from focalroute.evaluate.table import join, split

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("name", "per_task", "expected"),
    [
        pytest.param(
            "mmlupro12",
            False,
            {"best-single-train": (0.599, 0.095), "hindsight": (0.644, 0.119), "plurality": (0.63, 1), "oracle": 0.908},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "mmlu9",
            False,
            {"best-single-train": (0.826, 0.207), "plurality": (0.823, 1), "oracle": 0.936},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "zeroeval12",
            False,
            {"best-single-train": (0.771, 0.057), "plurality": (0.752, 1), "oracle": 0.916},
            marks=pytest.mark.slow,
        ),
        ("zeroeval12", True, {"best-single-train": (0.817, 0.052), "plurality": (0.838, 1), "oracle": 0.946}),
        pytest.param("llmrouter9", False, {"best-single-train": 0.749, "oracle": 0.879}, marks=pytest.mark.slow),
        pytest.param("llmrouter9", True, {"best-single-train": 0.596, "oracle": 0.778}, marks=pytest.mark.slow),
    ],
)
def test_reference_figures(name: str, per_task: bool, expected: dict[str, float | tuple[float, float]]) -> None:
    """To the last digit published; pluralities to half a point: their ties are broken by our own rule."""
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"needs the recorded answers {path.name}, which are not part of the project")
    table = join(read_log(path), load_pool(DATA / f"{name}.pool.toml"), path)
    parts = split(table, per_task=per_task, fraction=0.8)
    training = Training(table, parts.train, seed=0)

    def played(method: str) -> ReplayResult:
        if method == "oracle":
            return oracle(table, parts.test)
        hindsight = method == "hindsight"
        strategy = best_in_hindsight(table, parts.test) if hindsight else BASELINES[method](training)
        return play(strategy, table, parts.test)

    ask_all_usd = float(table.usd[parts.test].sum())
    for method, figure in expected.items():
        accuracy, *ratio = figure if isinstance(figure, tuple) else (figure,)
        scored = score(method, [played(method)], ask_all_usd)
        assert scored.accuracy == pytest.approx(accuracy, abs=0.005 if method == "plurality" else 0.0006), method
        assert [scored.cost_ratio] * len(ratio) == pytest.approx(ratio, abs=0.0006), method
