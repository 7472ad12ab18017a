"""Small logs whose best policy is known, and a check that nothing unasked is looked at."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from focalroute.evaluate.replay import ReplayResult, Strategy, Training, play
from focalroute.evaluate.table import LogTable
from tests.evaluate.logs import Line, closed, output, table_of

PRICES = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}


def two_sides(folder: Path, count: int = 600) -> LogTable:
    """a and b are right; c and d agree on a wrong answer. Everybody's plurality is a tie."""
    rng = random.Random(0)
    lines = []
    for n in range(count):
        label = rng.randrange(3)
        wrong = (label + rng.choice((1, 2))) % 3
        lines.append(closed(n, {"a": label, "b": label, "c": wrong, "d": wrong}, label))
    return table_of(folder, lines, PRICES)


def two_topics(folder: Path, count: int = 600) -> LogTable:
    """a knows sums, b knows law; c is always wrong."""
    rng = random.Random(0)
    lines = []
    for n in range(count):
        label, sums = rng.randrange(3), rng.random() < 0.5
        wrong = (label + 1) % 3
        answers = {"a": label if sums else wrong, "b": wrong if sums else label, "c": wrong}
        prompt = f"what is the sum of {n} and {n + 1}" if sums else f"which court hears case {n} on appeal"
        lines.append(closed(n, answers, label, prompt=prompt))
    return table_of(folder, lines, {name: PRICES[name] for name in "abc"})


def sure_or_not(folder: Path, count: int = 600) -> LogTable:
    """The cheap one says how sure it is, and is right when it is sure; the dear one is where it is not."""
    rng = random.Random(0)
    lines: list[Line] = []
    for n in range(count):
        label, sure = rng.randrange(3), rng.random() < 0.5
        said = label if sure else (label + 1) % 3
        top, rest = (0.96, 0.02) if sure else (0.4, 0.3)
        mass = [top if c == said else rest for c in range(3)]
        dear = label if not sure or n % 2 else (label + 1) % 3
        line = closed(n, {"cheap": said, "dear": dear}, label)
        line["outputs"]["cheap"] = output(said, probabilities=mass)
        lines.append(line)
    return table_of(folder, lines, {"cheap": 1.0, "dear": 10.0})


def parts(
    table: LogTable, fraction: float = 0.8, seed: int = 0
) -> tuple[Training, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The training part, and the rows of the rest."""
    cut = int(len(table.queries) * fraction)
    return Training(table, np.arange(cut), seed), np.arange(cut, len(table.queries))


def altered(table: LogTable, rows: np.ndarray[tuple[int], np.dtype[np.int64]], played: ReplayResult) -> LogTable:
    """The same log, but in these rows everybody who was not asked says, scores and costs something else."""
    candidate, value, usd = table.candidate.copy(), table.value.copy(), table.usd.copy()
    queries = list(table.queries)
    for n, row in enumerate(rows.tolist()):
        unasked = ~played.asked[n]
        candidate[row, unasked] = (candidate[row, unasked] + 1) % 3
        value[row, unasked] = 1 - value[row, unasked]
        usd[row, unasked] += 1
        names = [endpoint.name for i, endpoint in enumerate(table.endpoints) if played.asked[n, i]]
        queries[row] = replace(queries[row], outputs={name: queries[row].outputs[name] for name in names})
    return replace(table, queries=tuple(queries), candidate=candidate, value=value, usd=usd)


def sees_only_what_it_asked(table: LogTable, make: Callable[[Training], Strategy]) -> bool:
    """Whether it does the same where the answers of all whom it did not ask are others, or are not there to be read."""
    training, rows = parts(table)
    played = play(make(training), table, rows)
    other = altered(table, rows, played)
    again = play(make(replace(training, table=other)), other, rows)
    assert not played.asked.all()
    return all(np.array_equal(getattr(played, f), getattr(again, f)) for f in ("worth", "usd", "asked"))
