"""Compares off-policy estimates with the true values: ``python -m tests.benchmarks.offpolicy``.

It uses simulated questions and models, and recorded answers if ``../shared/data`` has them; see `tests.evaluate.truth`
for the comparison. Takes a few minutes; more ``--logs`` give more precise tables. Prints Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from focalroute.core.pool import load_pool
from focalroute.core.progress import progress_bar
from focalroute.evaluate.offpolicy import ESTIMATORS
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.table import LogTable, join
from tests.evaluate.truth import Study, Trial, World, simulated_table, study, targets

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
WARM, LAST = 1000, 3000
SIZE, SAMPLES = 600, 4  # answers in a log; how often each row is replayed for the true value
UNITS = {"accuracy": 1.0, "cost": 100.0}  # points; % of asking all. The reward is a sum of both


def tables(folder: Path) -> Iterator[tuple[str, LogTable]]:
    """Yield each available log with its name."""
    yield "simulated", simulated_table(folder, LAST)
    path = DATA / "mmlupro12.jsonl.gz"
    if path.exists():
        yield "mmlupro12", join(read_log(path), load_pool(DATA / "mmlupro12.pool.toml"), path)


def rows(name: str, one: Study) -> Iterator[str]:
    """Yield the table's lines for one policy."""
    for what, quantities in (("value", one.value), ("gain", one.gain)):
        for measure, unit in UNITS.items():
            known = quantities[measure]
            truth = f"{known.truth * unit:+.2f} ± {1.96 * known.truth_error * unit:.2f}"
            cells = [cell(known.trials[how], unit) if known.trials else "insufficient" for how in ESTIMATORS]
            yield f"| {name} | {what}, {measure} | {truth} | {' | '.join(cells)} |"


def cell(trial: Trial, unit: float) -> str:
    """Format one estimator's bias, RMSE and coverage."""
    bias = f"{trial.bias * unit:+.2f} ± {1.96 * trial.bias_error * unit:.2f}"
    return f"{bias}, {trial.rmse * unit:.2f}, {trial.coverage:.0%}"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=40, help="logs drawn for each table")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        policies = targets(Path(name))
        for log, table in tables(Path(name)):
            world = World.of(table, warm=WARM, last=LAST)
            with progress_bar(log, given.logs + len(policies), shown=True) as advance:
                found = study(world, policies, logs=given.logs, size=SIZE, samples=SAMPLES, advance=advance)
            print(f"\n{log}: {given.logs} logs of {SIZE} answers; bias ± 95 %, RMSE, coverage of the interval\n")
            print(f"| policy | | truth | {' | '.join(ESTIMATORS)} |\n|---|---|---|---|---|---|")
            for target, one in found.items():
                print(*rows(target, one), sep="\n")
            sizes = (f"{target} {one.size:.0f} ({one.answered:.0%})" for target, one in found.items())
            print(f"\nMean effective sample size (logs with sufficient evidence): {', '.join(sizes)}", flush=True)


if __name__ == "__main__":
    main()
