"""Asks every endpoint every question, several at a time, within a budget."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from focalroute.amounts import usd
from focalroute.answers import AnswerKind
from focalroute.budget import BudgetGuard
from focalroute.collect.dataset import Question
from focalroute.collect.lines import LogFile, line_of, outputs_of
from focalroute.config import Budget, Endpoint, validate_pool
from focalroute.errors import ConfigError
from focalroute.many import together
from focalroute.pool import Pool
from focalroute.query import make_query
from focalroute.race import Rules
from focalroute.store import open_store

__all__ = ["Collected", "collect"]

_SPENT = "the budget leaves too little for another question"
_IN_VAIN = 10  # questions in a row of which every call failed: there is no point in going on


@dataclass(slots=True)
class Collected:
    """What came of it.

    Attributes:
        before: questions whose lines were there at the start; ``asked``: those that were asked now.
        usd: what was paid now, as far as it is known.
        right: by endpoint, how many of its answers were right; ``answered``: of so many; ``failed``: its failed calls.
        stopped: why it ended before the last question; None if it did not.
    """

    before: int
    asked: int = 0
    usd: Decimal = Decimal(0)
    right: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None


async def collect(
    endpoints: Iterable[Endpoint],
    questions: Sequence[Question],
    out: str | Path,
    *,
    kind: AnswerKind | None = None,
    concurrency: int = 16,
    max_usd: Decimal | float | str | None = None,
    samples: int = 10,
    attempts: int = 3,
    deadline_s: float = 60.0,
    resume: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> Collected:
    """Ask every endpoint every question, and write what they answered as an outcome log.

    A call that fails is written as failed and counts neither right nor wrong; one whose reply holds no answer is wrong.
    No paid answer is lost, whatever ends it; what ended early can be resumed. It ends early, and says so, where the
    budget leaves too little, and where every call of ten questions in a row failed.

    Args:
        endpoints: the pool.
        questions: in the order that the log is to have.
        out: a ``.jsonl`` file.
        kind: of free-form answers, as for ``ask(answer=)``.
        concurrency: questions at a time.
        max_usd: what the whole log may cost, with what is there already; it stops in time.
        samples: as of an ensemble; ``attempts`` and ``deadline_s`` (of a question) likewise.
        resume: go on after the questions whose lines are there.
        advance: called with the number of questions done.

    Raises:
        ConfigError: an argument is wrong, or the file is not this dataset's log.
    """
    pool_of = validate_pool(endpoints, askable=True)
    if concurrency < 1:
        raise ConfigError(f"concurrency: must be at least 1, got {concurrency}")
    limit = None if max_usd is None else usd(max_usd, "max_usd")
    with closing(LogFile(Path(out), questions, resume=resume)) as log, closing(open_store(None)) as store:
        left = None if limit is None else limit - log.spent
        collected = Collected(len(log.done))
        advance(len(log.done))
        if left is not None and left <= 0:
            collected.stopped = _SPENT
            return collected
        guard = BudgetGuard(None if left is None else Budget(usd_total=left), pool_of, store)
        pool = Pool(pool_of, store, guard, rules=Rules(attempts), samples=samples)
        waiting = (question for question in questions if question.id not in log.done)
        work = _Collecting(pool, guard, log, collected, left, kind, deadline_s, advance)
        try:
            await together(work.run(waiting, range(len(pool_of))) for _ in range(concurrency))
        finally:
            await pool.aclose()
    return collected


@dataclass(slots=True)
class _Collecting:
    """What the workers share.

    Attributes:
        left: USD at the start; None: no limit. ``promised``: the most that the questions under way can cost.
        settled: is notified when a question is paid.
        in_vain: questions in a row, up to now, of which every call failed.
    """

    pool: Pool
    guard: BudgetGuard
    log: LogFile
    collected: Collected
    left: Decimal | None
    kind: AnswerKind | None
    deadline_s: float
    advance: Callable[[int], object]
    settled: asyncio.Condition = field(default_factory=asyncio.Condition)
    promised: Decimal = Decimal(0)
    in_vain: int = 0

    async def run(self, waiting: Iterator[Question], everybody: Sequence[int]) -> None:
        """Ask one after the other of those that are waiting."""
        for question in waiting:
            if self.collected.stopped is None:
                await self._one(question, everybody)

    async def _one(self, question: Question, everybody: Sequence[int]) -> None:
        kind = self.kind if question.choices is None else None
        query = make_query(question.messages, choices=question.choices, answer=kind)
        purse = self.guard.purse(None, query.id, (), self.deadline_s)
        bound = sum(await self.pool.upper_bounds(query, purse) or (), Decimal(0))
        if not await self._affordable(bound):
            self.collected.stopped = _SPENT
            return
        deadline = asyncio.get_running_loop().time() + self.deadline_s
        replies = await self.pool.ask(everybody, self.pool.terms(query, purse, deadline))
        async with self.settled:
            self.promised -= bound
            self.collected.usd += purse.spent
            self.settled.notify_all()
        outputs = outputs_of(replies, self.kind)
        self.log.put(question.id, line_of(question, outputs))
        self._count(question, outputs)
        self.advance(1)

    async def _affordable(self, bound: Decimal) -> bool:
        """Promise this much, once it is sure to fit; what others were promised they will not all spend."""
        if self.left is None:
            return True
        async with self.settled:
            while self.collected.usd + self.promised + bound > self.left:
                if not self.promised:
                    return False
                await self.settled.wait()
            self.promised += bound
        return True

    def _count(self, question: Question, outputs: Mapping[str, Mapping[str, Any]]) -> None:
        collected = self.collected
        collected.asked += 1
        for name, output in outputs.items():
            if "error" in output:
                collected.failed[name] += 1
            else:
                collected.answered[name] += 1
                collected.right[name] += output["answer"] == question.label
        self.in_vain = self.in_vain + 1 if all("error" in output for output in outputs.values()) else 0
        if self.in_vain >= _IN_VAIN:
            collected.stopped = f"of {_IN_VAIN} questions in a row every call failed"
