"""Asks every endpoint every question, several at a time, within a budget, and writes the answers as an outcome log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Context, Decimal
from pathlib import Path
from typing import Any, BinaryIO

from focalroute.answers import AnswerKind, normal_form
from focalroute.core.config import Budget, Endpoint
from focalroute.core.dollars import parse_usd
from focalroute.core.errors import ConfigError
from focalroute.core.files import hold_file, naming, refusing, replace_whole
from focalroute.core.pool import validate_pool
from focalroute.core.records import Reply, Usage
from focalroute.endpoints.pool import Pool
from focalroute.endpoints.round import Rules
from focalroute.evaluate.dataset import LabelledQuestion
from focalroute.evaluate.job_engine import HERE, Engine
from focalroute.evaluate.outcomes import LoggedQuery, Output, read_log
from focalroute.money.budget import BudgetGuard
from focalroute.serving.concurrency import check_concurrency, run_together
from focalroute.serving.query import make_query
from focalroute.store import open_store

_Outputs = Mapping[str, Mapping[str, Any]]
#: A question to ask, and the indices of the endpoints to ask.
_Waiting = tuple[LabelledQuestion, Sequence[int]]
#: The id of a question that was asked, and the log's output for each endpoint.
_Asked = tuple[str, _Outputs]

_PICO, _EXACT = Decimal("1e-12"), Context(prec=50)  # room for any budget with twelve decimals
_SAMPLES, _ATTEMPTS, _DEADLINE_S = 10, 3, 60.0  # for a question, as in an ensemble
_SPENT = "the budget leaves too little for another question"
_IN_VAIN = 10  # it stops after this many consecutive questions of which every call failed


@dataclass(slots=True)
class Collected:
    """The result of collecting.

    Attributes:
        before: questions that every endpoint had been asked before; ``asked``: questions asked now.
        usd: the known cost of this run, including capability checks.
        right: right answers by endpoint; ``answered``: all answers; ``failed``: failed calls.
        error: why the latest failed call of each endpoint failed.
        unpriced: endpoints with calls of unknown cost, which ``usd`` lacks.
        stopped: why it stopped before the last question; None if it did not.
    """

    before: int
    asked: int = 0
    usd: Decimal = Decimal(0)
    right: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    error: dict[str, str] = field(default_factory=dict)
    unpriced: set[str] = field(default_factory=set)
    stopped: str | None = None


class LogFile:
    """The log being written: a line is added as soon as its question is answered; closing sorts the lines.

    If a question was put to other endpoints before, it gets another line, and closing merges the two.

    Args:
        path: a ``.jsonl`` file.
        questions: the questions to ask, in order.
        pool: the names of the endpoints to ask.
        resume: whether to continue an existing file, which is otherwise an error.
        advance: called with the number of questions done.

    Attributes:
        spent: USD of the lines that were there when the log was opened, as far as known.
        collected: the result so far.

    Raises:
        ConfigError: the file exists without ``resume``, has other questions, or cannot be written now.
    """

    def __init__(
        self,
        path: Path,
        questions: Sequence[LabelledQuestion],
        pool: Sequence[str],
        *,
        resume: bool,
        advance: Callable[[int], object],
    ) -> None:
        if path.suffix != ".jsonl":
            raise ConfigError(f"{path}: give the log a name that ends in .jsonl")
        if path.exists() and not resume:
            raise ConfigError(f"{path}: already exists; resume it, or give another name")
        self._path, self._pool, self._advance = path, tuple(pool), advance
        self._questions = {question.id: question for question in questions}
        there: Sequence[LoggedQuery] = ()
        with ExitStack() as opened:
            with refusing(path, "written"):
                self._file = self._held(opened)
                self._file.seek(0)
                self._file.truncate(self._file.read().rfind(b"\n") + 1)  # a process that died may have left half a line
                replaced = False
                with contextlib.suppress(ValueError, LookupError, TypeError):  # a line that is wrong is named below
                    replaced = self._put_in_order()
                if replaced:
                    self._file.close()
                    self._file = self._held(opened)
                if self._file.seek(0, os.SEEK_END):
                    there = read_log(path)
            for query in there:
                question = self._questions.get(query.id)
                if question is None:
                    raise ConfigError(f"{path}:{query.line}: id: {query.id!r} is not in the dataset; give another name")
                if _content(query) != _content(question):
                    raise ConfigError(
                        f"{path}:{query.line}: id: {query.id!r} has another question, choices or label in the dataset; "
                        "correct the line, or give another name"
                    )
            opened.pop_all()  # it stays open
        self._asked = {
            query.id: {name for name, output in query.outputs.items() if not _in_vain(output)} for query in there
        }
        outputs = [output for query in there for output in query.outputs.values()]
        self.spent = sum((Decimal(str(output.cost_usd or 0)) for output in outputs), Decimal(0))
        self.collected = Collected(len(questions) - len(self.waiting))
        advance(self.collected.before)

    def _held(self, opened: ExitStack) -> BinaryIO:
        file = opened.enter_context(self._path.open("ab+"))
        hold_file(file, self._path)
        return file

    @property
    def waiting(self) -> list[_Waiting]:
        """The questions that some endpoint has not been asked yet, with those endpoints."""
        waiting: list[_Waiting] = []
        for id_, question in self._questions.items():
            asked = self._asked.get(id_, ())
            if members := [i for i, name in enumerate(self._pool) if name not in asked]:
                waiting.append((question, members))
        return waiting

    def take(self, asked: _Asked) -> None:
        """Write a question's line, and count its outputs."""
        id_, outputs = asked
        question = self._questions[id_]
        with naming(self._path):
            self._file.write(_encoded(_row(question, outputs)))
            self._file.flush()
        self._asked.setdefault(id_, set()).update(outputs)
        self._advance(1)
        self.collected.asked += 1
        for name, output in outputs.items():
            if "cost_usd" not in output:
                self.collected.unpriced.add(name)
            if "error" in output:
                self.collected.failed[name] += 1
                self.collected.error[name] = output["error"]
            else:
                self.collected.answered[name] += 1
                self.collected.right[name] += output["answer"] == question.label

    def close(self) -> None:
        """Put the lines in order; a log without lines is removed."""
        self._put_in_order()
        if not os.fstat(self._file.fileno()).st_size:
            self._path.unlink()
        self._file.close()

    def _put_in_order(self) -> bool:
        """Sort and merge lines into a new file that replaces the log atomically; return whether that was needed."""
        order = {id_: number for number, id_ in enumerate(self._questions)}
        with naming(self._path):
            self._file.seek(0)
            lines = self._file.readlines()
        one: dict[str, bytes] = {}
        for line in lines:
            row = json.loads(line)
            if (former := one.get(row["id"])) is not None:
                row["outputs"] = {**json.loads(former)["outputs"], **row["outputs"]}
                line = _encoded(row)
            one[row["id"]] = line
        ordered = [one[id_] for id_ in sorted(one, key=order.__getitem__)]
        if lines == ordered:
            return False
        replace_whole(self._path, b"".join(ordered))
        return True


def _in_vain(output: Output) -> bool:
    """Whether a call failed and cost nothing, as in an outage: it is made again, and nothing is paid twice."""
    return output.error is not None and not output.cost_usd


def _content(question: LabelledQuestion | LoggedQuery) -> bytes:
    """Return a question's content and label in the log's encoding."""
    asked = [question.messages, question.choices, question.label]
    return json.dumps(asked, ensure_ascii=False, sort_keys=True, default=dict).encode("utf-8", "replace")


def _row(question: LabelledQuestion, outputs: _Outputs) -> Mapping[str, Any]:
    row: dict[str, Any] = {"id": question.id, "task": question.task, "choices": question.choices}
    row["prompt"] = question.prompt
    if question.prompt is None:
        row["messages"] = question.messages
    row |= {"label": question.label, "outputs": outputs}
    return {key: value for key, value in row.items() if value is not None}


def _encoded(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _output(reply: Reply, kind: AnswerKind | None) -> Mapping[str, Any]:
    """A reply in the log's format: its ``answer`` (the index of the choice, or the text in normal form; None: it has
    none), or the ``error`` of a failed call."""
    usage = reply.usage or Usage(0, 0)
    output: dict[str, Any] = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    output["latency_s"] = round(reply.latency_s, 4)
    if reply.cost is not None:
        output["cost_usd"] = float(reply.cost)
    if reply.error is not None and reply.error.kind != "unusable":  # a reply without a usable answer still is a reply
        return {"error": f"{reply.error.kind}: {reply.error.message}", **output}
    if reply.probabilities is not None:
        output["probabilities"] = reply.probabilities
    answer: int | str | None = None
    if reply.error is None:
        answer = reply.choice
        if answer is None:
            answer = normal_form(reply.text or "", kind)
    return {"answer": answer, **output}


def collect(
    endpoints: Iterable[Endpoint],
    questions: Sequence[LabelledQuestion],
    out: str | Path,
    *,
    kind: AnswerKind | None = None,
    concurrency: int = 16,
    max_usd: Decimal | float | str | None = None,
    resume: bool = False,
    advance: Callable[[int], object] = lambda _: None,
    engine: Engine = HERE,
) -> Collected:
    """Ask every endpoint every question, and write the answers as an outcome log.

    A failed call is logged as failed and counts neither as right nor wrong; a reply without an answer is wrong. No paid
    answer is lost if the run is interrupted, and it can be resumed. It stops early if too little of the budget is left,
    or if every call of ten consecutive questions failed.

    Every machine of an engine asks a share of the questions within a share of the budget, so machines need not
    coordinate; one of them spends what the shares left over at the end. The log is written here. Each machine takes the
    keys from its own environment, and keeps the pool's rate limits by itself.

    Args:
        endpoints: the pool.
        questions: the questions, in the log's order.
        out: a ``.jsonl`` file.
        kind: the kind of free-form answers, as for ``ask(answer=)``.
        concurrency: questions at a time, on each machine.
        max_usd: the most that the whole log may cost, including earlier runs.
        resume: continue an existing log; an endpoint new in the pool is asked the earlier questions, too.
        advance: called with the number of questions done.
        engine: the engine whose machines ask.

    Raises:
        ConfigError: an argument is invalid, or the file is not this dataset's log.
        FocalrouteError: a machine was lost. Its answers are in the log, so resuming asks the rest; its calls under way
            may have been paid.
    """
    check_concurrency(concurrency)
    way, left = _Way(validate_pool(endpoints, askable=True), kind, concurrency), None
    if max_usd is not None:
        left = parse_usd(max_usd, "max_usd")
    names = [endpoint.name for endpoint in way.pool]
    with closing(LogFile(Path(out), questions, names, resume=resume, advance=advance)) as log:
        collected = log.collected
        if left is not None:
            left -= log.spent
        for machines in (engine.machines, 1):
            share = None
            if left is not None:
                share = (left / machines).quantize(_PICO, ROUND_FLOOR, _EXACT)
            waiting = log.waiting
            shares = [(waiting[start::machines], share) for start in range(machines)]
            ended = engine.each(_share, way, shares, log.take, again=False)
            paid = sum((usd for _, usd in ended), Decimal(0))
            collected.usd += paid
            collected.stopped = next((why for why, _ in ended if why is not None), None)
            if left is None or collected.stopped != _SPENT or machines == 1:
                break
            left -= paid
        return collected


@dataclass(frozen=True, slots=True)
class _Way:
    """The settings of asking; see `collect`."""

    pool: tuple[Endpoint, ...]
    kind: AnswerKind | None
    concurrency: int


def _share(
    way: _Way, share: tuple[Sequence[_Waiting], Decimal | None], tell: Callable[[_Asked], object]
) -> tuple[str | None, Decimal]:
    """Ask one machine's share of the questions; return why it stopped early (None: it did not), and the USD paid.

    That includes the cost of capability checks.
    """
    return asyncio.run(_ask_all(way, *share, tell))


async def _ask_all(
    way: _Way, waiting: Sequence[_Waiting], left: Decimal | None, tell: Callable[[_Asked], object]
) -> tuple[str | None, Decimal]:
    """Ask every endpoint these questions, spending no more than is left."""
    if not waiting:
        return None, Decimal(0)
    budget = None
    if left is not None:
        if left <= 0:
            return _SPENT, Decimal(0)
        budget = Budget(usd_total=left)
    with closing(open_store(None)) as store:
        guard = BudgetGuard(budget, way.pool, store)
        pool = Pool(way.pool, store, guard, rules=Rules(_ATTEMPTS), samples=_SAMPLES)
        work, questions = _Asking(way, pool, guard, left, tell), iter(waiting)
        try:
            await run_together(work.run(questions) for _ in range(way.concurrency))
        finally:
            await pool.aclose()
        noted = sum((total.cost for total in store.totals().values()), Decimal(0))
    if left is None:  # then the store holds only the probes
        noted += work.spent
    return work.stopped, noted


@dataclass(slots=True)
class _Asking:
    """The state that the workers share.

    Attributes:
        left: USD at the start; None: no limit.
        promised: the most that the questions under way can cost.
        settled: notified when a question is paid.
        in_vain: the latest consecutive questions of which every call failed.
    """

    way: _Way
    pool: Pool
    guard: BudgetGuard
    left: Decimal | None
    tell: Callable[[_Asked], object]
    settled: asyncio.Condition = field(default_factory=asyncio.Condition)
    spent: Decimal = Decimal(0)
    promised: Decimal = Decimal(0)
    in_vain: int = 0
    stopped: str | None = None

    async def run(self, waiting: Iterator[_Waiting]) -> None:
        """Ask waiting questions one after the other."""
        for question, members in waiting:
            if self.stopped is None:
                await self._one(question, members)

    async def _one(self, question: LabelledQuestion, members: Sequence[int]) -> None:
        kind = None
        if question.choices is None:
            kind = self.way.kind
        query = make_query(question.messages, choices=question.choices, answer=kind)
        ask_budget = self.guard.ask_budget(None, query.id, (), _DEADLINE_S)
        bounds = await self.pool.upper_bounds(query, ask_budget)
        bound = sum((bounds[i] for i in members), Decimal(0)) if bounds else Decimal(0)
        if not await self._affordable(bound):
            self.stopped = _SPENT
            return
        deadline = asyncio.get_running_loop().time() + _DEADLINE_S
        replies = await self.pool.ask(members, self.pool.call_context(query, ask_budget, deadline))
        async with self.settled:
            self.promised -= bound
            self.spent += ask_budget.spent
            self.settled.notify_all()
        outputs = {reply.endpoint: _output(reply, self.way.kind) for reply in replies}
        self.tell((question.id, outputs))
        self.in_vain += 1
        if not all("error" in output for output in outputs.values()):
            self.in_vain = 0
        if self.in_vain >= _IN_VAIN:
            self.stopped = f"of {_IN_VAIN} questions in a row every call failed"

    async def _affordable(self, bound: Decimal) -> bool:
        """Promise an amount once it fits, waiting for other questions to settle; False if it never can."""
        if self.left is None:
            return True
        async with self.settled:
            while self.spent + self.promised + bound > self.left:
                if not self.promised:
                    return False
                await self.settled.wait()
            self.promised += bound
        return True
