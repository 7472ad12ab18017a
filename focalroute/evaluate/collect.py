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

_PICO, _EXACT = Decimal("1e-12"), Context(prec=50)  # precise enough for any budget with twelve decimals
_SAMPLES, _ATTEMPTS, _DEADLINE_S = 10, 3, 60.0  # for a question, as in an ensemble
_BUDGET_SPENT = "the budget leaves too little for another question"
_MOST_FAILURES = 10  # collecting stops after this many consecutive questions of which every call failed


@dataclass(slots=True)
class Collected:
    """The result of collecting.

    Attributes:
        before: number of questions that every endpoint had already been asked in earlier runs.
        asked: number of questions asked in this run.
        usd: the known cost of this run, including capability checks.
        right: endpoint -> right answers of this run.
        answered: endpoint -> replies of this run.
        failed: endpoint -> failed calls of this run.
        error: endpoint -> why its latest failed call failed.
        unpriced: endpoints with calls of unknown cost, which ``usd`` does not include.
        stopped: why this run stopped before the last question; None if it did not.
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

    A question that other endpoints were asked earlier gets another line; closing merges the two.

    Args:
        path: a ``.jsonl`` file.
        questions: the questions to ask, in order.
        pool: the names of the endpoints to ask.
        resume: whether to continue an existing file, which is otherwise an error.
        advance: called with the number of questions done.

    Attributes:
        spent: the known cost, in USD, of the calls that were in the log when it was opened.
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
        earlier: Sequence[LoggedQuery] = ()
        with ExitStack() as stack:
            with refusing(path, "written"):
                self._file = self._open_locked(stack)
                self._file.seek(0)
                self._file.truncate(self._file.read().rfind(b"\n") + 1)  # a process that died may have left half a line
                replaced = False
                with contextlib.suppress(ValueError, LookupError, TypeError):  # read_log below reports a bad line
                    replaced = self._put_in_order()
                if replaced:
                    self._file.close()
                    self._file = self._open_locked(stack)
                if self._file.seek(0, os.SEEK_END):
                    earlier = read_log(path)
            self._check_questions(earlier)
            stack.pop_all()  # the file stays open
        self._asked = {
            query.id: {name for name, output in query.outputs.items() if not _is_free_failure(output)}
            for query in earlier
        }
        outputs = [output for query in earlier for output in query.outputs.values()]
        self.spent = sum((Decimal(str(output.cost_usd or 0)) for output in outputs), Decimal(0))
        self.collected = Collected(len(questions) - len(self.waiting))
        advance(self.collected.before)

    def _open_locked(self, stack: ExitStack) -> BinaryIO:
        file = stack.enter_context(self._path.open("ab+"))
        hold_file(file, self._path)
        return file

    def _check_questions(self, earlier: Sequence[LoggedQuery]) -> None:
        """Check that the questions of an existing log are those of the dataset."""
        for query in earlier:
            where = f"{self._path}:{query.line}: id: {query.id!r}"
            question = self._questions.get(query.id)
            if question is None:
                raise ConfigError(f"{where} is not in the dataset; give another name")
            if _content(query) != _content(question):
                raise ConfigError(
                    f"{where} has another question, choices or label in the dataset; correct the line, or give another "
                    "name"
                )

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
        merged: dict[str, bytes] = {}
        for line in lines:
            row = json.loads(line)
            if (earlier := merged.get(row["id"])) is not None:
                row["outputs"] = {**json.loads(earlier)["outputs"], **row["outputs"]}
                line = _encoded(row)
            merged[row["id"]] = line
        ordered = [merged[id_] for id_ in sorted(merged, key=order.__getitem__)]
        if lines == ordered:
            return False
        replace_whole(self._path, b"".join(ordered))
        return True


def _is_free_failure(output: Output) -> bool:
    """Whether a call failed and cost nothing, as in an outage; it can be made again without paying twice."""
    return output.error is not None and not output.cost_usd


def _content(question: LabelledQuestion | LoggedQuery) -> bytes:
    """Return a question's content and label in the log's encoding."""
    content = [question.messages, question.choices, question.label]
    return json.dumps(content, ensure_ascii=False, sort_keys=True, default=dict).encode("utf-8", "replace")


def _row(question: LabelledQuestion, outputs: _Outputs) -> Mapping[str, Any]:
    """Make the JSON object of a question's line."""
    row: dict[str, Any] = {"id": question.id, "task": question.task, "choices": question.choices}
    row["prompt"] = question.prompt
    if question.prompt is None:
        row["messages"] = question.messages
    row |= {"label": question.label, "outputs": outputs}
    return {key: value for key, value in row.items() if value is not None}


def _encoded(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _output(reply: Reply, kind: AnswerKind | None) -> Mapping[str, Any]:
    """Return a reply in the log's format.

    It has the ``error`` of a failed call, else the ``answer``: the index of the choice, or the text in normal form;
    None if the reply has no usable answer.
    """
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

    A failed call is logged as failed and counts neither as right nor as wrong; a reply without an answer counts as
    wrong. If the run is interrupted, no paid answer is lost, and it can be resumed. It stops early if too little of the
    budget is left, or if every call of ten consecutive questions failed.

    Each machine of an engine asks a share of the questions within a share of the budget. In the end, one machine goes
    on with what the shares have left over. Each machine takes the API keys from its own environment, and applies the
    pool's rate limits by itself. The log is written here.

    Args:
        endpoints: the pool.
        questions: the questions, in the log's order.
        out: a ``.jsonl`` file.
        kind: the kind of free-form answers, as for ``ask(answer=)``.
        concurrency: questions at a time, on each machine.
        max_usd: the most that the whole log may cost, including earlier runs.
        resume: whether to continue an existing log; a new endpoint of the pool is asked the earlier questions, too.
        advance: called with the number of questions done.
        engine: the engine whose machines ask.

    Raises:
        ConfigError: an argument is invalid, or the file is not this dataset's log.
        FocalrouteError: a machine was lost. The answers it had sent are in the log, and resuming asks the rest; calls
            that it had not finished may be paid twice.
    """
    check_concurrency(concurrency)
    settings, left = _Settings(validate_pool(endpoints, askable=True), kind, concurrency), None
    if max_usd is not None:
        left = parse_usd(max_usd, "max_usd")
    names = [endpoint.name for endpoint in settings.pool]
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
            results = engine.each(_ask_share, settings, shares, log.take, again=False)
            paid = sum((usd for _, usd in results), Decimal(0))
            collected.usd += paid
            collected.stopped = next((why for why, _ in results if why is not None), None)
            if left is None or collected.stopped != _BUDGET_SPENT or machines == 1:
                break
            left -= paid
        return collected


@dataclass(frozen=True, slots=True)
class _Settings:
    """The arguments of `collect` that every machine needs."""

    pool: tuple[Endpoint, ...]
    kind: AnswerKind | None
    concurrency: int


def _ask_share(
    settings: _Settings, share: tuple[Sequence[_Waiting], Decimal | None], tell: Callable[[_Asked], object]
) -> tuple[str | None, Decimal]:
    """Ask one machine's share of the questions within its share of the budget; an engine's job.

    Returns:
        Why it stopped early (None: it did not), and the USD paid, including the cost of capability checks.
    """
    return asyncio.run(_ask_all(settings, *share, tell))


async def _ask_all(
    settings: _Settings, waiting: Sequence[_Waiting], limit: Decimal | None, tell: Callable[[_Asked], object]
) -> tuple[str | None, Decimal]:
    """As `_ask_share`."""
    if not waiting:
        return None, Decimal(0)
    budget = None
    if limit is not None:
        if limit <= 0:
            return _BUDGET_SPENT, Decimal(0)
        budget = Budget(usd_total=limit)
    with closing(open_store(None)) as store:
        guard = BudgetGuard(budget, settings.pool, store)
        pool = Pool(settings.pool, store, guard, rules=Rules(_ATTEMPTS), samples=_SAMPLES)
        state, questions = _Asking(settings, pool, guard, limit, tell), iter(waiting)
        try:
            await run_together(state.run(questions) for _ in range(settings.concurrency))
        finally:
            await pool.aclose()
        paid = sum((total.cost for total in store.totals().values()), Decimal(0))
    if limit is None:  # without a budget, the store's ledger has only the capability checks
        paid += state.spent
    return state.stopped, paid


@dataclass(slots=True)
class _Asking:
    """The state that concurrent workers share.

    Attributes:
        limit: USD that may be spent; None: no limit.
        spent: USD spent on finished questions.
        reserved: the most that the unfinished questions can cost.
        settled: notified when a question's cost is known.
        failures: number of the latest consecutive questions of which every call failed.
        stopped: why no more questions are asked; None: they are.
    """

    settings: _Settings
    pool: Pool
    guard: BudgetGuard
    limit: Decimal | None
    tell: Callable[[_Asked], object]
    settled: asyncio.Condition = field(default_factory=asyncio.Condition)
    spent: Decimal = Decimal(0)
    reserved: Decimal = Decimal(0)
    failures: int = 0
    stopped: str | None = None

    async def run(self, waiting: Iterator[_Waiting]) -> None:
        """Ask waiting questions one after the other."""
        for question, members in waiting:
            if self.stopped is None:
                await self._ask(question, members)

    async def _ask(self, question: LabelledQuestion, members: Sequence[int]) -> None:
        """Ask one question, if it can be paid."""
        kind = None
        if question.choices is None:
            kind = self.settings.kind
        query = make_query(question.messages, choices=question.choices, answer=kind)
        ask_budget = self.guard.ask_budget(None, query.id, (), _DEADLINE_S)
        bounds = await self.pool.upper_bounds(query, ask_budget)
        bound = sum((bounds[i] for i in members), Decimal(0)) if bounds else Decimal(0)
        if not await self._reserve(bound):
            self.stopped = _BUDGET_SPENT
            return
        deadline = asyncio.get_running_loop().time() + _DEADLINE_S
        replies = await self.pool.ask(members, self.pool.call_context(query, ask_budget, deadline))
        async with self.settled:
            self.reserved -= bound
            self.spent += ask_budget.spent
            self.settled.notify_all()
        outputs = {reply.endpoint: _output(reply, self.settings.kind) for reply in replies}
        self.tell((question.id, outputs))
        self.failures += 1
        if not all("error" in output for output in outputs.values()):
            self.failures = 0
        if self.failures >= _MOST_FAILURES:
            self.stopped = f"every call of {_MOST_FAILURES} questions in a row failed"

    async def _reserve(self, bound: Decimal) -> bool:
        """Reserve an amount, waiting until other questions leave enough for it; return False if they never will."""
        if self.limit is None:
            return True
        async with self.settled:
            while self.spent + self.reserved + bound > self.limit:
                if not self.reserved:
                    return False
                await self.settled.wait()
            self.reserved += bound
        return True
