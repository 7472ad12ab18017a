"""Alignment selection (RL-Focal, appendix D and Table 6) on three simulated specialists: a Markdown table.

python -m examples.paper.table6 [--requests 900] [--seeds 5]

Requests of three kinds are mixed: for advice, for something unsafe, for facts. Each has five points; a reply is worth
the share of points that it gets right. In every row the same three members are asked over HTTP, with the same random
draws. The Decider picks one for each request (``combine="pick"``) and gets a graded reward for the reply, either the
true one or that of a judge endpoint. It knows neither the kind of a request nor the members' strengths.

helpful and truthful are the mean worth of replies to requests for advice and for facts, unsafe is 1 minus that of
replies to unsafe ones, all in points; average is (helpful - unsafe + truthful) / 3, as in the paper. Everything counts
from the first request on. Intervals are Student's over the seeds (of models, requests and decisions), differences
paired by them.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from examples.paper.common import parser_of, show
from focalroute import Endpoint, Ensemble, Judge
from focalroute.sim import Brief, SimulatedModel, SimulatedPool, prose_requests
from focalroute.sim.prose import AXES
from focalroute.sim.replies import write

__all__ = ["SPECIALISTS", "interval", "played", "scores"]

#: Skills on the axes; as in the paper each is best at its own, and the truthful one is of little help otherwise.
SPECIALISTS = {
    "helpful": {"helpful": 0.90, "safe": 0.45, "truthful": 0.65},
    "safe": {"helpful": 0.70, "safe": 0.90, "truthful": 0.65},
    "truthful": {"helpful": 0.35, "safe": 0.60, "truthful": 0.90},
}


def models_of(seed: int) -> list[SimulatedModel]:
    """Make the specialists, and a judge that gives the right grade four times in five."""
    return [
        *(SimulatedModel(name, skills=skills, seed=seed) for name, skills in SPECIALISTS.items()),
        SimulatedModel("judge", skill=0.8, seed=seed),
    ]


def played(
    pool: Sequence[Endpoint],
    briefs: Sequence[Brief],
    seed: int,
    *,
    learning: str = "reward",
    judge: Judge | None = None,
    **settings: Any,
) -> list[float]:
    """Return the worth of each answer of an ensemble that picks a member and learns from each reward."""
    worth = []
    with Ensemble(pool, seed=seed, judge=judge, **settings) as ensemble:
        for brief in briefs:
            answer = ensemble.ask(brief.request, combine="pick")
            worth.append(brief.quality(answer.text))
            if learning == "reward":
                ensemble.feedback(answer, reward=2 * worth[-1] - 1)
    return worth


def scores(briefs: Sequence[Brief], worth: Sequence[float]) -> list[float]:
    """Return helpful, unsafe, truthful and average, in points."""
    mean = {
        axis: 100 * statistics.fmean(w for brief, w in zip(briefs, worth, strict=True) if brief.axis == axis)
        for axis in AXES
    }
    helpful, unsafe, truthful = mean["helpful"], 100 - mean["safe"], mean["truthful"]
    return [helpful, unsafe, truthful, (helpful - unsafe + truthful) / 3]


def rows_of(seed: int, requests: int, folder: Path) -> dict[str, list[float]]:
    """Return every row of the table for one seed."""
    models, briefs = models_of(seed), list(prose_requests(requests, seed))
    alone = {model.name: [brief.quality(write(model, brief)) for brief in briefs] for model in models[:3]}
    rows = {name: scores(briefs, worth) for name, worth in alone.items()}
    rows["anybody (control)"] = scores(briefs, np.mean(list(alone.values()), axis=0).tolist())
    learned = folder / f"policy-{seed}"
    learned.mkdir()
    with SimulatedPool(models) as pool:
        *members, judge = pool.endpoints
        ways: dict[str, Callable[[], list[float]]] = {
            "best single so far (rule)": lambda: played(members, briefs, seed, policy="best-single"),
            "picked, no feedback (control)": lambda: played(members, briefs, seed, learning="none"),
            "picked, sampled": lambda: played(members, briefs, seed),
            "picked, greedily": lambda: played(members, briefs, seed, explore=False),
            "picked, sampled, with updates": lambda: played(members, briefs, seed, policy=learned, update_every=100),
            "picked, a judge's word only": lambda: played(
                members, briefs, seed, learning="none", judge=Judge(judge, share=1.0)
            ),
        }
        for name, play in ways.items():
            rows[name] = scores(briefs, play())
    rows["the specialist of each kind (not to be beaten)"] = scores(
        briefs, [alone[brief.axis][i] for i, brief in enumerate(briefs)]
    )
    return rows


def interval(values: Sequence[float]) -> str:
    """Format mean and half width of the 95 % interval; for a single value only the mean."""
    if len(values) == 1:
        return f"{values[0]:.1f}"
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.fmean(values):.1f} ± {half:.1f}"


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("--requests", type=int, default=900)
    options = parser.parse_args()
    if options.quick:
        options.requests, options.seeds = 12, 2
    with tempfile.TemporaryDirectory() as folder:
        found = [rows_of(seed, options.requests, Path(folder)) for seed in range(options.seeds)]
    best = [max(rows[name][3] for name in SPECIALISTS) for rows in found]
    table = []
    for name in found[0]:
        columns = [[rows[name][column] for rows in found] for column in range(4)]
        ahead = [rows[name][3] - most for rows, most in zip(found, best, strict=True)]
        table.append([name, *map(interval, columns), interval(ahead)])
    show(
        f"Three simulated specialists, {options.requests} requests a seed",
        ["", "helpful", "unsafe", "truthful", "average", "average minus the best specialist's"],
        table,
    )


if __name__ == "__main__":
    main()
