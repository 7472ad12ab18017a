"""Training sees the same calibration of probabilities as serving would."""

from __future__ import annotations

import math

import numpy as np
import pytest

from examples.paper.generated import MODELS, Shape, biased_log
from focalroute.core.records import Masses, Outcome, Query, Reply
from focalroute.evaluate.table import LogTable
from focalroute.evaluate.training import recorded
from focalroute.learn.offline.prior_stats import calibration, compute_prior_stats, expected
from focalroute.learn.offline.rollout import log_view
from focalroute.learn.offline.views import long_run
from focalroute.observe.layout import ENDPOINT, MEMBER, slices
from focalroute.observe.observer import Observer

COLUMNS = [slices(MEMBER)[name].start for name in ("log_probability", "calibrated")]
EVIDENCE = slices(MEMBER)["evidence"].start
SIGNAL = slices(ENDPOINT)["signal"].start


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LogTable:
    """A small generated log: 4 tasks of 2, 7, 13 and 19 choices."""
    return biased_log(0, tmp_path_factory.mktemp("biased"), Shape((2, 7, 13, 19), train=30, test=10))


def masses(table: LogTable, row: int, *, show_task: bool) -> Masses:
    """What everyone gave on a query."""
    query = table.queries[row]
    logs = {
        name: np.log(np.maximum(output.probabilities or (), math.exp(-30))).astype(np.float32)
        for name, output in query.outputs.items()
    }
    task = query.task if show_task else None
    return Masses(task, int(table.label[row]), int(table.size[row]), logs)


def fed(table: LogTable, rows: range, *, show_task: bool) -> Observer:
    """An observer that has learned these queries, everyone asked."""
    observer = Observer(MODELS, [None] * len(MODELS), detect=False)
    for row in rows:
        observer.learn(Outcome(f"q{row}", {}, {}, masses=masses(table, row, show_task=show_task)))
    return observer


def seen_in_service(observer: Observer, table: LogTable, row: int, *, show_task: bool) -> tuple[np.ndarray, np.ndarray]:
    """Endpoint rows before anybody is asked, and (K, N, Fm) once all have answered."""
    logged = table.queries[row]
    sight = observer.begin(Query(logged.id, (), logged.choices, task=logged.task if show_task else None))
    observation = sight.observe(round=1, cost_weight=0.1, budget_left=1.0)
    for i, name in enumerate(MODELS):
        output = logged.outputs[name]
        sight.add(Reply(name, name, int(table.candidate[row, i]), output.probabilities), 1)
    return observation.endpoints, sight.evidence().members


@pytest.mark.parametrize("show_task", [True, False])
def test_training_sees_what_serving_would(table: LogTable, show_task: bool) -> None:
    """Before the first query, in the middle, and at the end, on tasks known and new."""
    rows = np.arange(len(table.queries))
    log = recorded(table, rows, show_task=show_task)
    everyone = np.ones(log.there.shape, bool)
    _, prior = long_run(log, rows)
    prior_stats = compute_prior_stats(log, everyone, ~everyone, prior, window=500)
    seen = log_view(log, prior_stats, expected(log), rows, np.arange(1, 6), calibration(log))
    for row in (0, 1, 2, 5, 40, 90, len(rows) - 1):
        endpoints, members = seen_in_service(
            fed(table, range(row), show_task=show_task), table, row, show_task=show_task
        )
        k = int(table.size[row])
        assert np.allclose(seen.features[row, :k][..., COLUMNS], members[..., COLUMNS], atol=1e-4)
        assert np.allclose(seen.columns[row, :, SIGNAL], endpoints[:, SIGNAL], atol=1e-5)
    assert np.abs(seen.features[-1][..., COLUMNS[1]]).max() > 0.5
    assert not np.array_equal(seen.columns[-1, :, SIGNAL], np.zeros(5))
