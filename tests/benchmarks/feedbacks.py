"""Measures how many feedbacks are committed per second, and how long one call takes.

``python -m tests.benchmarks.feedbacks``. The answers were asked over HTTP and are in a store on disk. The observer
learns from every feedback; policies are not updated. The floor is SQLite with the same two statements in batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from focalroute import Answer, AsyncEnsemble
from tests.benchmarks import harness
from tests.benchmarks.harness import PROMPT, Section, Table, Target, p99, quartiles
from tests.benchmarks.peers import burst
from tests.benchmarks.server import floor_server

ANSWERS, CROWD, ALONE = 4000, 256, 500


async def measured() -> tuple[float, list[float]]:
    """Return feedbacks per second with many at a time, and the seconds of single ones."""
    with tempfile.TemporaryDirectory() as name, floor_server() as url:
        async with harness.ensemble(url, 1, Path(name)) as ensemble:
            answers = await asked(ensemble, ANSWERS + ALONE)
            taken = []
            for number in range(ALONE):
                started = time.perf_counter()
                await ensemble.feedback(answers.pop(), reward=number % 3 > 0)
                taken.append(time.perf_counter() - started)
            rate = await at_once(answers, lambda answer: ensemble.feedback(answer, reward=True))
    return rate, taken


async def asked(ensemble: AsyncEnsemble, count: int) -> list[Answer]:
    """Ask this number of questions; return the answers."""
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await ensemble.ask(PROMPT))

    await burst(ask, count, 64)
    return answers


async def at_once(answers: Sequence[Answer], give: Callable[[Answer], Awaitable[None]]) -> float:
    """Return feedbacks per second, `CROWD` at a time."""
    left = iter(answers)

    async def work() -> None:
        for answer in left:
            await give(answer)

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CROWD)))
    return len(answers) / (time.perf_counter() - started)


def raw_rate() -> float:
    """Return rows per second that SQLite commits by itself, in batches of `CROWD`."""
    with tempfile.TemporaryDirectory() as name, contextlib.closing(sqlite3.connect(Path(name) / "raw.db")) as db:
        db.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE answers (id TEXT PRIMARY KEY); "
            "CREATE TABLE feedback (seq INTEGER PRIMARY KEY, answer_id TEXT, source TEXT, reward REAL)"
        )
        names = [f"{number:032x}" for number in range(ANSWERS)]
        db.executemany("INSERT INTO answers VALUES (?)", [(one,) for one in names])
        db.commit()
        started = time.perf_counter()
        for first in range(0, ANSWERS, CROWD):
            for one in names[first : first + CROWD]:
                db.execute("SELECT 1 FROM answers WHERE id = ?", (one,)).fetchone()
                db.execute("INSERT INTO feedback (answer_id, source, reward) VALUES (?, 'user', 1)", (one,))
            db.commit()
        return ANSWERS / (time.perf_counter() - started)


def section() -> Section:
    """Measure feedback (section 3 of the page)."""
    rate, alone = asyncio.run(measured())
    raw = raw_rate()
    times = raw / rate
    said = f"{times:.0f} times, {rate:,.0f} a second"
    targets = (
        Target("a durable feedback", "<= 80 times a row of SQLite", said, times <= 80, f"{raw:,.0f} rows a second"),
    )
    rows = [("one after the other", quartiles(alone), f"{p99(alone) * 1e3:.2f}")]
    return Section("3. Feedback", targets, (Table(("feedback()", "p50, ms (quartiles)", "p99, ms"), rows),))


if __name__ == "__main__":
    harness.main(section)
