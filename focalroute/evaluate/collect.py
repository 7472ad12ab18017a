"""``focalroute collect`` and ``import``: asks every endpoint every question, several at a time, within a budget."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

from focalroute.answers import AnswerKind, normal_form
from focalroute.core.config import Budget, Endpoint
from focalroute.core.dollars import parse_usd
from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool, validate_pool
from focalroute.core.progress import progress_bar
from focalroute.core.records import Reply, Usage
from focalroute.endpoints.pool import Pool
from focalroute.endpoints.round import Rules
from focalroute.evaluate.dataset import LabelledQuestion, read_dataset
from focalroute.evaluate.harness import import_samples
from focalroute.evaluate.job_engine import HERE, Engine, open_engine
from focalroute.evaluate.outcomes import LoggedQuery, read_log
from focalroute.evaluate.output import table
from focalroute.money.budget import BudgetGuard
from focalroute.serving.concurrency import run_together
from focalroute.serving.query import make_query
from focalroute.store import open_store


def outputs_of(replies: Sequence[Reply], kind: AnswerKind | None) -> dict[str, Mapping[str, Any]]:
    """By endpoint, what the log says of its reply: the ``answer`` (the index of the choice, or the text in normal form;
    None: there is none in it), or the ``error`` of a call that came to nothing."""
    return {reply.endpoint: _output(reply, kind) for reply in replies}


def line_of(question: LabelledQuestion, outputs: Mapping[str, Mapping[str, Any]]) -> str:
    """One line of the log."""
    row: dict[str, Any] = {"id": question.id, "task": question.task, "choices": question.choices}
    row |= {"messages": question.messages} if question.prompt is None else {"prompt": question.prompt}
    row |= {"label": question.label, "outputs": outputs}
    return json.dumps({key: value for key, value in row.items() if value is not None}, ensure_ascii=False)


def _output(reply: Reply, kind: AnswerKind | None) -> Mapping[str, Any]:
    usage = reply.usage or Usage(0, 0)
    output: dict[str, Any] = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    output["latency_s"] = round(reply.latency_s, 4)
    if reply.cost is not None:
        output["cost_usd"] = float(reply.cost)
    if reply.error is not None and reply.error.kind != "unusable":  # a reply that holds no answer is one
        return {"error": f"{reply.error.kind}: {reply.error.message}", **output}
    if reply.probabilities is not None:
        output["probabilities"] = reply.probabilities
    return {"answer": _answer(reply, kind), **output}


def _answer(reply: Reply, kind: AnswerKind | None) -> int | str | None:
    if reply.error is not None:
        return None
    return reply.choice if reply.choice is not None else normal_form(reply.text or "", kind)


class LogFile:
    """Each line is written as soon as its question is answered, and put in the questions' order at the end.

    Args:
        path: a ``.jsonl`` file.
        questions: what is asked, in order.
        resume: go on with what is there; else nothing may be.

    Attributes:
        done: the ids of the questions whose lines are there.
        spent: USD that these cost when the log was opened, as far as it is known.

    Raises:
        ConfigError: it is there and not to be resumed, holds other questions, or cannot be written.
    """

    def __init__(self, path: Path, questions: Sequence[LabelledQuestion], *, resume: bool) -> None:
        if path.suffix != ".jsonl":
            raise ConfigError(f"{path}: give the log a name that ends in .jsonl")
        if path.exists() and not resume:
            raise ConfigError(f"{path}: is there already; resume it, or give another name")
        self._path = path
        self._order = {question.id: number for number, question in enumerate(questions)}
        with ExitStack() as opened:
            try:
                self._file = opened.enter_context(path.open("ab+"))
                self._file.truncate(self._whole())
                there = read_log(path) if self._file.seek(0, os.SEEK_END) else ()
            except OSError as error:
                raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
            self._must_be_of_them(there)
            opened.pop_all()  # it stays open
        self.done = {query.id for query in there}
        outputs = [output for query in there for output in query.outputs.values()]
        self.spent = sum((Decimal(str(output.cost_usd or 0)) for output in outputs), Decimal(0))

    def _whole(self) -> int:
        """Bytes up to the end of the last whole line: a process that died may have left half of one."""
        self._file.seek(0)
        return self._file.read().rfind(b"\n") + 1

    def _must_be_of_them(self, there: Sequence[LoggedQuery]) -> None:
        other = next((query for query in there if query.id not in self._order), None)
        if other is not None:
            raise ConfigError(
                f"{self._path}:{other.line}: id: {other.id!r} is not in the dataset; give the log another name"
            )

    def put(self, id_: str, line: str) -> None:
        """Write the line of a question."""
        self._file.write(line.encode("utf-8", "replace") + b"\n")
        self._file.flush()
        self.done.add(id_)

    def close(self) -> None:
        """Put the lines in order; at any moment the file holds all of them."""
        self._file.seek(0)
        lines = self._file.readlines()
        ordered = sorted(lines, key=lambda line: self._order[json.loads(line)["id"]])
        self._file.close()
        if lines != ordered:
            beside = self._path.with_name(self._path.name + ".sorted")
            beside.write_bytes(b"".join(ordered))
            beside.replace(self._path)


_PICO = Decimal("1e-12")
_SAMPLES, _ATTEMPTS, _DEADLINE_S = 10, 3, 60.0  # of a question, as of an ensemble
_SPENT = "the budget leaves too little for another question"
_IN_VAIN = 10  # questions in a row of which every call failed: there is no point in going on


@dataclass(slots=True)
class Collected:
    """The result of collecting.

    Attributes:
        before: questions whose lines were there at the start; ``asked``: those that were asked now.
        usd: what was paid now, as far as it is known; trying out what an endpoint can do is part of it.
        right: by endpoint, how many of its answers were right; ``answered``: of how many; ``failed``: its failed calls.
        stopped: why it ended before the last question; None if it did not.
    """

    before: int
    asked: int = 0
    usd: Decimal = Decimal(0)
    right: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    stopped: str | None = None


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
    """Ask every endpoint every question, and write what they answered as an outcome log.

    A call that fails is written as failed and counts neither right nor wrong; one whose reply holds no answer is wrong.
    No paid answer is lost, whatever ends it; what ended early can be resumed. It ends early, and says so, where the
    budget leaves too little, and where every call of ten questions in a row failed.

    Every machine of an engine asks a share of the questions; the log is written here. What may be spent is shared out
    as well, so that all of them together keep to it without asking each other; what their shares left over is spent by
    one of them in the end. Each machine takes the keys from its own environment, and keeps the pool's limits of calls
    for itself.

    Args:
        endpoints: the pool.
        questions: in the order that the log is to have.
        out: a ``.jsonl`` file.
        kind: of free-form answers, as for ``ask(answer=)``.
        concurrency: questions at a time, on each machine.
        max_usd: what the whole log may cost, with what is there already; it stops in time.
        resume: go on after the questions whose lines are there.
        advance: called with the number of questions done.
        engine: whose machines ask.

    Raises:
        ConfigError: an argument is wrong, or the file is not this dataset's log.
        FocalrouteError: a machine was lost. What it had answered is in the log, so resuming asks the rest; what it
            had under way may have been paid.
    """
    way = _Way(validate_pool(endpoints, askable=True), kind, concurrency)
    limit = None if max_usd is None else parse_usd(max_usd, "max_usd")
    with closing(LogFile(Path(out), questions, resume=resume)) as log:
        writing = _Writing(log, questions, advance)
        left = None if limit is None else limit - log.spent
        for machines in (engine.machines, 1):
            share = None if left is None else (left / machines).quantize(_PICO, ROUND_FLOOR)
            waiting = list(writing.waiting)
            shares = [(waiting[start::machines], share) for start in range(machines)]
            ended = engine.each(_share, way, shares, writing.take, again=False)
            collected = writing.ended(*ended)
            if left is None or collected.stopped != _SPENT or machines == 1:
                break
            left -= sum((one.usd for one in ended), Decimal(0))
        return collected


def _share(
    way: _Way, share: tuple[Sequence[LabelledQuestion], Decimal | None], tell: Callable[[_Asked], object]
) -> _Ended:
    """The questions of one machine, as a job."""
    questions, left = share
    return asyncio.run(_ask_all(way, iter(questions), left, tell))


@dataclass(frozen=True, slots=True)
class _Way:
    """How questions are asked; see `collect`.

    Raises:
        ConfigError: ``concurrency`` is below 1.
    """

    pool: tuple[Endpoint, ...]
    kind: AnswerKind | None
    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ConfigError(f"concurrency: must be at least 1, got {self.concurrency}")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question that was asked: its id, and what the log says of each endpoint."""

    id: str
    outputs: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Ended:
    """Why it ended before the last question, None if it did not; and what was paid, USD.

    That is more than the questions cost: what an endpoint can do is tried out first.
    """

    stopped: str | None
    usd: Decimal


class _Writing:
    """Writes what was answered, and counts."""

    def __init__(self, log: LogFile, questions: Sequence[LabelledQuestion], advance: Callable[[int], object]) -> None:
        self.collected = Collected(len(log.done))
        self._log = log
        self._questions = {question.id: question for question in questions}
        self._advance = advance
        advance(len(log.done))

    @property
    def waiting(self) -> Iterator[LabelledQuestion]:
        """Those that are not in the log yet."""
        done = frozenset(self._log.done)
        return (question for question in self._questions.values() if question.id not in done)

    def take(self, asked: _Asked) -> None:
        """Write a line."""
        question = self._questions[asked.id]
        self._log.put(asked.id, line_of(question, asked.outputs))
        self._advance(1)
        self.collected.asked += 1
        for name, output in asked.outputs.items():
            if "error" in output:
                self.collected.failed[name] += 1
            else:
                self.collected.answered[name] += 1
                self.collected.right[name] += output["answer"] == question.label

    def ended(self, *shares: _Ended) -> Collected:
        """Return the result, now that the workers have ended."""
        self.collected.usd += sum((one.usd for one in shares), Decimal(0))
        self.collected.stopped = next((one.stopped for one in shares if one.stopped is not None), None)
        return self.collected


async def _ask_all(
    way: _Way, waiting: Iterator[LabelledQuestion], left: Decimal | None, tell: Callable[[_Asked], object]
) -> _Ended:
    """Ask every endpoint these questions, spending no more than is left."""
    if left is not None and left <= 0:
        return _Ended(_SPENT, Decimal(0))
    with closing(open_store(None)) as store:
        guard = BudgetGuard(None if left is None else Budget(usd_total=left), way.pool, store)
        pool = Pool(way.pool, store, guard, rules=Rules(_ATTEMPTS), samples=_SAMPLES)
        work = _Asking(way, pool, guard, left, tell)
        try:
            await run_together(work.run(waiting) for _ in range(way.concurrency))
        finally:
            await pool.aclose()
        noted = sum((total.cost for total in store.totals().values()), Decimal(0))
        return _Ended(work.stopped, noted if left is not None else noted + work.spent)  # without a limit: probes alone


@dataclass(slots=True)
class _Asking:
    """The state that the workers share.

    Attributes:
        left: USD at the start; None: no limit. ``promised``: the most that the questions under way can cost.
        settled: is notified when a question is paid.
        in_vain: questions in a row, up to now, of which every call failed.
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

    async def run(self, waiting: Iterator[LabelledQuestion]) -> None:
        """Ask one after the other of those that are waiting."""
        for question in waiting:
            if self.stopped is None:
                await self._one(question)

    async def _one(self, question: LabelledQuestion) -> None:
        kind = self.way.kind if question.choices is None else None
        query = make_query(question.messages, choices=question.choices, answer=kind)
        ask_budget = self.guard.ask_budget(None, query.id, (), _DEADLINE_S)
        bound = sum(await self.pool.upper_bounds(query, ask_budget) or (), Decimal(0))
        if not await self._affordable(bound):
            self.stopped = _SPENT
            return
        deadline = asyncio.get_running_loop().time() + _DEADLINE_S
        replies = await self.pool.ask(range(len(self.way.pool)), self.pool.call_context(query, ask_budget, deadline))
        async with self.settled:
            self.promised -= bound
            self.spent += ask_budget.spent
            self.settled.notify_all()
        outputs = outputs_of(replies, self.way.kind)
        self.tell(_Asked(question.id, outputs))
        self.in_vain = self.in_vain + 1 if all("error" in output for output in outputs.values()) else 0
        if self.in_vain >= _IN_VAIN:
            self.stopped = f"of {_IN_VAIN} questions in a row every call failed"

    async def _affordable(self, bound: Decimal) -> bool:
        """Promise this much, once it is sure to fit; what others were promised they will not all spend."""
        if self.left is None:
            return True
        async with self.settled:
            while self.spent + self.promised + bound > self.left:
                if not self.promised:
                    return False
                await self.settled.wait()
            self.promised += bound
        return True


def collect_command(
    dataset: str,
    pool: Path,
    out: Path,
    *,
    columns: Sequence[str] = (),
    answer: str | None = None,
    limit: int | None = None,
    concurrency: int = 16,
    max_usd: str | None = None,
    resume: bool = False,
    engine: str = "local",
    as_json: bool = False,
) -> bool:
    """Collect with a progress bar and print what came of it; whether every question was asked.

    Args:
        dataset: see `read_dataset`; ``columns`` are of the form FIELD=COLUMN.
        limit: only this many questions from the start.
        engine: see `focalroute.evaluate.job_engine.open_engine`.

    Raises:
        ConfigError: an argument, the dataset, the pool or the log is wrong, or there is no such engine.
        FocalrouteError: see `collect`.
    """
    endpoints = load_pool(pool).endpoints
    questions = read_dataset(dataset, columns=_columns(columns), kind=answer)[:limit]
    settings: Any = {"kind": answer, "concurrency": concurrency, "max_usd": max_usd, "resume": resume}
    with progress_bar("asking", len(questions), shown=not as_json) as advance, open_engine(engine) as opened:
        collected = collect(endpoints, questions, out, **settings, advance=advance, engine=opened)
    names = [endpoint.name for endpoint in endpoints]
    if as_json:
        print(json.dumps(_told(collected, out, names), indent=2))
    else:
        _show(collected, out, names)
    return collected.stopped is None


def import_command(samples: Sequence[str], out: Path, *, skip_bad_rows: bool = False, as_json: bool = False) -> None:
    """Import files of per-choice log-likelihoods, each given as MODEL=FILE, and print what came of it.

    Raises:
        ConfigError: see `import_samples`.
    """
    files: dict[str, list[str]] = {}
    for text in samples:
        model, _, file = text.partition("=")
        if not (model and file):
            raise ConfigError(f"samples: {text!r}: give MODEL=FILE, such as llama-3-8b=samples_gpqa.jsonl")
        files.setdefault(model, []).append(file)
    found = import_samples(files, out, skip_bad_rows=skip_bad_rows)
    if as_json:
        print(json.dumps({"log": str(out), **asdict(found)}, indent=2))
        return
    for name, answered in found.answered.items():
        share = f"{found.right[name] / answered:.1%} right" if answered else "-"
        print(f"{name}: {answered} questions, {share}")
    left_out = f", {found.bad_rows} bad rows left out" if found.bad_rows else ""
    print(f"{found.questions} questions{left_out}; {out}")


def _columns(given: Sequence[str]) -> Mapping[str, str]:
    pairs = [text.partition("=") for text in given]
    wrong = next((text for text, (field, _, column) in zip(given, pairs, strict=True) if not (field and column)), None)
    if wrong is not None:
        raise ConfigError(f"column: {wrong!r}: give FIELD=COLUMN, such as label=answer")
    return {field.strip(): column.strip() for field, _, column in pairs}


def _told(collected: Collected, out: Path, names: Sequence[str]) -> Mapping[str, object]:
    return {
        "log": str(out),
        "before": collected.before,
        "asked": collected.asked,
        "usd": str(collected.usd),
        "stopped": collected.stopped,
        "endpoints": [
            {
                "name": name,
                "answered": collected.answered[name],
                "right": collected.right[name],
                "failed": collected.failed[name],
            }
            for name in names
        ],
    }


def _show(collected: Collected, out: Path, names: Sequence[str]) -> None:
    from rich.console import Console

    rows = []
    for name in names:
        answered = collected.answered[name]
        share = f"{collected.right[name] / answered:.1%}" if answered else "-"
        rows.append((name, str(answered), share, str(collected.failed[name])))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table(("endpoint", "answered", "right", "failed"), rows, left=("endpoint",)))
    there = f" ({collected.before} were there)" if collected.before else ""
    console.print(f"{collected.asked} questions asked for ${collected.usd:f}; {out}{there}")
    if collected.stopped is not None:
        console.print(f"stopped: {collected.stopped}; --resume goes on from here")
