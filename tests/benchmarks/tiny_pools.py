"""Runs the experiment of `examples.tiny_pool` on several pools: ``python -m tests.benchmarks.tiny_pools``.

Each pool has five small language models, with its own seeds and mixtures of counting and logic. The models are cached
under the digest of their recipe; the first run trains them, which takes five minutes for each pool. Each pool is served
one stream of questions; intervals are Student's over pools.
Needs torch (the extra ``train``) and llama-server (`make real`).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.tiny_pool.__main__ import played
from examples.tiny_pool.experiment import Sizes
from examples.tiny_pool.recipe import ROSTER, Recipe, Roster
from examples.tiny_pool.training import ready
from focalroute.evaluate.metrics import compare
from focalroute.evaluate.replay import ReplayResult
from tests.benchmarks.harness import Table, markdown_table
from tests.benchmarks.simulated_pools import LEARNED, OURS, RIVALS, SINGLE, ahead

_STEPS = (250, 950)  # training steps for logic alone, and how many more for counting alone, which is harder


def roster(pool: int) -> Roster:
    """The models of a pool: sizes and prices of `ROSTER`, each with another seed and another share of counting.

    One model has almost no counting, one almost only counting, and three have a share in between.
    """
    rng = random.Random(pool)
    shares = [rng.uniform(0, 0.1), rng.uniform(0.9, 1), *(rng.uniform(0.1, 0.9) for _ in range(3))]
    rng.shuffle(shares)
    models = tuple(map(_another, ROSTER.models, shares, (100 * pool + at for at in range(5))))
    return Roster(models, "birch", ROSTER.newcomer)


def _another(recipe: Recipe, counting: float, seed: int) -> Recipe:
    steps = round(_STEPS[0] + _STEPS[1] * counting)
    mix = {"counting": round(counting, 2), "logic": round(1 - counting, 2)}
    return Recipe(recipe.name, recipe.shape, mix, steps, seed, recipe.usd_per_1m, alone=steps // 2)


def main() -> None:
    """Train the models that are not cached, run each pool once, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", type=int, default=6)
    parser.add_argument("--queries", type=int, default=Sizes().stream)
    options = parser.parse_args()
    results = []
    for pool in range(1, options.pools + 1):
        models = roster(pool)
        files = [ready(recipe) for recipe in (*models.models, models.newcomer)]
        with TemporaryDirectory() as folder:
            seed = played(Path(folder) / "pool", pool, Sizes(stream=options.queries), models)
            beside = seed.beside()
            ours = {name: seed.lives[name].played() for name in OURS}
            results.append({name: beside[name] for name in RIVALS} | ours)
            ask_all_usd = float(seed.table.usd[seed.rows].sum())
        print(pool, *(file.stem for file in files), flush=True)
        print(pool, *(f"{name} {_cell(run, ask_all_usd)}" for name, run in results[-1].items()), flush=True)
    print()
    head = ["pool", *RIVALS, *OURS, f"cold minus the best single, from {LEARNED} on"]
    print(markdown_table(Table(head, _rows(results))))
    print()
    print(markdown_table(Table(["points, mean of pools", *(f"minus {name}" for name in RIVALS)], _means(results))))


def _cell(run: ReplayResult, ask_all_usd: float) -> str:
    return f"{run.worth.mean():.3f} @ {run.usd.sum() / ask_all_usd:.3f}"


def _rows(results: Sequence[dict[str, ReplayResult]]) -> list[list[str]]:
    pools = dict(enumerate(results, 1))
    late = slice(LEARNED, None)
    minus = compare({pool: ([runs["cold"].part(late)], [runs[SINGLE].part(late)]) for pool, runs in pools.items()})
    return [
        [str(pool), *(f"{runs[name].worth.mean():.3f}" for name in (*RIVALS, *OURS)), minus[pool].in_points()]
        for pool, runs in pools.items()
    ]


def _means(results: Sequence[dict[str, ReplayResult]]) -> list[list[str]]:
    rows = []
    for ours in OURS:
        rows.append([f"focalroute, {ours}", *(ahead(results, ours, rival) for rival in RIVALS)])
    return rows


if __name__ == "__main__":
    main()
