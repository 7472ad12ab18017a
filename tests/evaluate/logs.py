"""Outcome logs and pools that a test needs, written as the format says."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from focalroute.core.pool import load_pool
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.table import LogTable, join
from focalroute.sim import SimulatedPool

Line = dict[str, Any]


def output(answer: float | str | None, **more: Any) -> Line:
    """An output of 100 prompt and 10 completion tokens."""
    return {"answer": answer, "prompt_tokens": 100, "completion_tokens": 10, **more}


def closed(number: int, answers: Mapping[str, int | None], label: int = 0, **more: Any) -> Line:
    """A closed question with choices A, B, C."""
    outputs = {name: output(answer) for name, answer in answers.items()}
    return {"id": f"q{number}", "prompt": f"question {number}", "choices": ["A", "B", "C"], "label": label,
            "outputs": outputs, **more}  # fmt: skip


def write_log(path: Path, lines: Sequence[Line | str]) -> Path:
    """The lines as a log; a string stands as it is."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def write_pool(path: Path, prices: Mapping[str, float]) -> Path:
    """A pool of endpoints at so many USD per million tokens."""
    tables = (
        f'[[endpoint]]\nname = "{name}"\nmodel = "m"\ninput_usd_per_1m = {usd}\noutput_usd_per_1m = {usd}\n'
        for name, usd in prices.items()
    )
    path.write_text("".join(tables), "utf-8")
    return path


def paid_for(log: Path) -> Decimal:
    """What the questions of a log cost, USD."""
    outputs = [output for one in read_log(log) for output in one.outputs.values()]
    return sum((Decimal(str(output.cost_usd)) for output in outputs), Decimal(0))


def billed(pool: SimulatedPool) -> Decimal:
    """What a simulated pool has charged so far, USD."""
    return sum((stats.usd for stats in pool.stats().values()), Decimal(0))


def table_of(folder: Path, lines: Sequence[Line], prices: Mapping[str, float]) -> LogTable:
    """The lines, written, read and joined with a pool."""
    log = write_log(folder / "log.jsonl", lines)
    return join(read_log(log), load_pool(write_pool(folder / "pool.toml", prices)), log)


def stream(count: int, skills: Mapping[str, float], *, seed: int = 0) -> list[Line]:
    """Closed questions in two topics; each endpoint is right with its probability, independently."""
    rng = random.Random(seed)
    lines = []
    for n in range(count):
        label = rng.randrange(3)
        answers = {
            name: label if rng.random() < skill else (label + rng.choice((1, 2))) % 3 for name, skill in skills.items()
        }
        lines.append(closed(n, answers, label, task="odd" if n % 2 else "even"))
    return lines
