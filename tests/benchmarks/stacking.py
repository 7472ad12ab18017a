"""Fusion of probabilities against classical stacking, on a generated log with position bias: Markdown tables.

    python -m tests.benchmarks.stacking [--seeds 20] [--keep FILE]

Per-task split, the task shown, everybody's probabilities in the training part (see `examples.paper.generated`). The
baselines ask all five models; focalroute is trained with its default settings and plays all five, and half the calls.
``--keep``: results by seed, one JSON object a line; seeds that are there already are not run again.
Needs the extra ``dev`` (scikit-learn).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from examples.paper.generated import MODELS, TEST, TRAIN, biased_log
from focalroute.evaluate.playing import PolicyReplay, trained
from focalroute.evaluate.replay import ReplayResult, Training
from focalroute.evaluate.serving import Shuffled
from focalroute.evaluate.table import LogTable, Split, learning_order, split
from focalroute.evaluate.training import recorded
from focalroute.learn.offline.prior_stats import log_masses
from focalroute.learn.offline.reinforce import OfflineSettings
from focalroute.policy.bundle import Policy, cold
from tests.benchmarks.harness import student_points
from tests.benchmarks.stackers import Task, multinomial, nested

HALF = 0.5
BASELINES = ("multinomial", "nested", "nested with weights")
OURS = ("focalroute, half the calls", "focalroute, all", "cold start, all")
_WARM = 500


def run(seed: int) -> dict[str, float]:
    """Accuracy of every method on the test part, and what focalroute asked."""
    with tempfile.TemporaryDirectory() as folder:
        table = biased_log(seed, Path(folder))
    parts = split(table, per_task=True, fraction=TRAIN / (TRAIN + TEST))
    settings = OfflineSettings()
    rows = learning_order(table, parts.train, "per-task")
    policy = trained(table, rows, seed=seed, settings=settings, show_task=True, advance=lambda _: None)
    served = _served(policy, table, parts, seed, rows[-_WARM:])
    half = served.run(HALF).played
    return {
        "seed": seed,
        **_stacked(_by_task(table, parts.train), _by_task(table, parts.test)),
        OURS[0]: float(half.worth.mean()),
        "calls": float(half.asked.sum(axis=1).mean()),
        OURS[1]: float(_asking_all(served).worth.mean()),
        OURS[2]: float(_asking_all(_served(cold(), table, parts, seed, parts.train)).worth.mean()),
    }


def _served(policy: Policy, table: LogTable, parts: Split, seed: int, warm: NDArray[np.int64]) -> PolicyReplay:
    training = Training(table, parts.train, seed, show_task=True)
    return PolicyReplay(policy, table, parts, training, warm, explore=False, advance=lambda _: None)


def _asking_all(served: PolicyReplay) -> ReplayResult:
    plan = [(tuple(range(len(MODELS))),)] * (len(served.warm) + len(served.parts.test))
    seed, endpoints = served.training.seed, served.table.endpoints
    return served.after_warm(Shuffled(served.policy, endpoints, seed=seed, explore=False, plan=plan, start=0))


def _by_task(table: LogTable, rows: NDArray[np.int64]) -> list[Task]:
    """The tasks in one order, their members' log-probabilities scaled alike."""
    log = recorded(table, rows, show_task=True)
    logs, tasks = log_masses(log), log.tasks
    assert tasks is not None
    found = []
    for task in np.unique(tasks):
        at = tasks == task
        found.append(Task(logs[at][:, :, : int(log.size[at][0])], table.label[rows][at]))
    return found


def _stacked(train: list[Task], test: list[Task]) -> dict[str, float]:
    scale = float(np.concatenate([task.x.ravel() for task in train]).std())
    train, test = ([Task(task.x / scale, task.label) for task in tasks] for tasks in (train, test))

    def accuracy(predicted: list[NDArray[np.int64]]) -> float:
        right = [p == task.label for p, task in zip(predicted, test, strict=True)]
        return float(np.concatenate(right).mean())

    matrix, penalties = nested(train, test)
    weights, other = nested(train, test, weights=True)
    return {
        "multinomial": accuracy([multinomial(a, b) for a, b in zip(train, test, strict=True)]),
        "nested": accuracy(matrix),
        "nested with weights": accuracy(weights),
        "bias penalty": penalties.bias,
        "matrix penalty": penalties.matrix,
        "weight penalty": other.weights,
    }


def report(results: list[dict[str, float]]) -> None:
    """Means over seeds, and paired differences with 95 % intervals (Student's t over seeds)."""
    print("| | accuracy | minus multinomial | minus nested | minus nested with weights |\n|---|---|---|---|---|")
    for method in (*OURS, *BASELINES):
        values = np.array([result[method] for result in results])
        cells = [_difference(values, np.array([result[name] for result in results])) for name in BASELINES]
        print(f"| {method} | {values.mean():.3f} | {' | '.join(cells)} |")
    print(f"\ncalls a query at half the calls: {np.mean([result['calls'] for result in results]):.2f} of {len(MODELS)}")


def _difference(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> str:
    difference = ours - theirs
    return student_points(difference) if difference.any() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    kept = given.keep.read_text("utf-8").splitlines() if given.keep and given.keep.exists() else []
    known = {int(result["seed"]): result for result in map(json.loads, kept)}
    results = []
    for seed in range(given.first, given.first + given.seeds):
        if seed not in known:
            known[seed] = run(seed)
            if given.keep:
                with given.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known[seed]) + "\n")
        results.append(known[seed])
        print({name: round(value, 3) for name, value in known[seed].items()}, flush=True)
    report(results)


if __name__ == "__main__":
    with warnings.catch_warnings():
        # a label may be seen less often than there are folds; and the weakest penalties need not converge
        warnings.filterwarnings("ignore", message="The least populated class", category=UserWarning)
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        main()
