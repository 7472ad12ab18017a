"""Reads the queries of a live evaluation, runs ensembles on them, and provides the environment for training DER.

In DER's chains, each endpoint is shown the answer before its own. For training, endpoints are assumed not to change: a
call with the same question, endpoint and shown answer is made only once, and its reply is remembered. Calls go over
HTTP, through an ensemble of one endpoint (`over_http`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from focalroute.answers import AnswerKind, normal_form
from focalroute.core.config import Endpoint
from focalroute.core.receipts import Answer, Call
from focalroute.core.records import F32, I64, Bools, Query, Reply
from focalroute.evaluate.dataset import read_dataset
from focalroute.evaluate.quality import Quality
from focalroute.evaluate.replay import ReplayResult
from focalroute.observe.features import text_features
from focalroute.observe.layout import width
from focalroute.policy.sequential import ANSWER, STEP, STEP_ENDPOINT, flat, stacked
from focalroute.serving.query import make_query
from focalroute.serving.sequential import format_answer, show_answer
from focalroute.serving.sync import Ensemble
from focalroute.sim import Question

_BATCH = 8


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """One query with its right answer.

    Attributes:
        query: the query.
        label: the right choice's text, or the right answer to a free-form question.
        quality: scores a free-form answer against the label; None: 1 if their normal forms are equal, else 0.
    """

    query: Query
    label: str
    quality: Quality | None = None

    def form(self, reply: Reply) -> str | None:
        """Return a reply's answer: a choice's text, or a free-form answer's normal form; None without an answer."""
        if self.query.choices is not None:
            return None if reply.choice is None else self.query.choices[reply.choice]
        return normal_form(reply.text or "", self.query.answer)

    def worth(self, form: str | None) -> float:
        """Return the worth of an answer, in [0, 1]; no answer is worth 0."""
        if form is None:
            return 0.0
        if self.query.choices is not None:
            return float(form == self.label)
        if self.quality is None:
            return float(form == normal_form(self.label, self.query.answer))
        return min(1.0, max(0.0, self.quality(form, self.label)))

    def worth_of(self, answer: Answer) -> float:
        """Return the worth of a fused answer."""
        return self.worth(answer.value if self.query.choices else normal_form(answer.text, self.query.answer))


def read_queries(
    path: str | Path, *, answer: AnswerKind | None = None, quality: Quality | None = None
) -> tuple[LiveQuery, ...]:
    """Read the questions of a dataset as queries.

    Args:
        path: as for `focalroute.evaluate.dataset.read_dataset`.
        answer: the kind of free-form answers (see `focalroute.AsyncEnsemble.ask`).
        quality: scores free-form answers.

    Raises:
        ConfigError: the dataset cannot be read, or a row is invalid.
    """
    found = []
    for question in read_dataset(path, kind=answer):
        if question.choices is None:
            query = make_query(question.messages, answer=answer, task=question.task)
            found.append(LiveQuery(query, str(question.label), quality))
        else:
            query = make_query(question.messages, choices=question.choices, task=question.task)
            found.append(LiveQuery(query, question.choices[int(question.label)]))
    return tuple(found)


def of_questions(
    questions: Sequence[Question], *, answer: AnswerKind | None = None, quality: Quality | None = None
) -> tuple[LiveQuery, ...]:
    """Make queries of simulated questions: with their choices, or free-form if the kind of ``answer`` is given."""
    queries = []
    for question in questions:
        choices = None if answer else question.choices
        query = make_query(question.text, choices=choices, answer=answer, task=question.topic)
        queries.append(LiveQuery(query, question.answer, quality))
    return tuple(queries)


@dataclass(frozen=True, slots=True)
class LiveResult(ReplayResult):
    """The results of a strategy on n live queries.

    Attributes:
        tokens: endpoint -> (n,) prompt and completion tokens, where reported.
    """

    tokens: Mapping[str, NDArray[np.int64]]


def play(
    ensemble: Ensemble, queries: Sequence[LiveQuery], advance: Callable[[int], object] = lambda _: None
) -> list[Answer | None]:
    """Answer queries in batches of eight, with feedback after each batch; return the answers, None for a failure."""
    answers: list[Answer | None] = []
    for start in range(0, len(queries), _BATCH):
        batch = queries[start : start + _BATCH]
        asks = [_arguments(live.query) for live in batch]
        results = ensemble.ask_many(asks, concurrency=_BATCH, return_exceptions=True)
        for live, answer in zip(batch, results, strict=True):
            if not isinstance(answer, Answer):
                answers.append(None)
                continue
            answers.append(answer)
            if live.quality is None:
                ensemble.feedback(answer, label=live.label)
            else:
                ensemble.feedback(answer, reward=2 * live.worth_of(answer) - 1)
        advance(len(batch))
    return answers


def _arguments(query: Query) -> dict[str, Any]:
    """Return the arguments of `focalroute.Ensemble.ask` that ask this query."""
    return {"query": list(query.messages), "choices": query.choices, "answer": query.answer}


def truncated(queries: Sequence[LiveQuery], answers: Sequence[Answer | None], steps: int | None = None) -> LiveResult:
    """Return the results of answers as if every chain had ended after this many steps, with its last usable reply.

    The rules that ask one endpoint at a time decide each step independently of T_max, so one run with the largest T_max
    gives the results of all shorter chains.

    Args:
        queries: the queries.
        answers: their answers; None: it failed.
        steps: the length; None: the answers are used as they are.
    """
    n = len(queries)
    worth, usd = np.zeros(n), np.zeros(n)
    made: list[list[Call]] = [[] for _ in answers]
    for calls, answer in zip(made, answers, strict=True):
        if answer is not None:
            calls += [call for call in answer.receipt.calls if steps is None or call.round <= steps]
    asked = np.zeros((n, max(map(len, made), default=0)), np.bool_)
    tokens: dict[str, NDArray[np.int64]] = {}
    for row, (live, answer, calls) in enumerate(zip(queries, answers, made, strict=True)):
        if answer is None:
            continue
        asked[row, : len(calls)] = True
        usd[row] = sum(float(call.cost or 0) for call in calls)
        for call in calls:
            if call.usage is not None:
                used = call.usage.prompt_tokens + call.usage.completion_tokens
                tokens.setdefault(call.endpoint, np.zeros(n, np.int64))[row] += used
        usable = [reply for reply, call in zip(answer.replies, calls, strict=False) if call.candidate is not None]
        if steps is None:
            worth[row] = live.worth_of(answer)
        elif usable:
            worth[row] = live.worth(live.form(usable[-1]))
    return LiveResult(worth, usd, asked, tokens)


_JITTER = 0.25  # standard deviation of the noise on the window's columns in training, as they change in service
_CONCURRENCY = 16


class ChainCall(NamedTuple):
    """One call of a chain.

    Attributes:
        query: index of the query.
        endpoint: index of the endpoint.
        shown: the text of the answer that is shown to the endpoint; None: none is shown.
    """

    query: int
    endpoint: int
    shown: str | None


class ChainReply(NamedTuple):
    """The reply of one step.

    Attributes:
        text: the text to show to the next endpoint; None: the reply is not usable.
        form: the answer in normal form.
        features: (`ANSWER`,) features of ``form``.
        certainty: the endpoint's own probability of the answer; 0 if it gave none.
        worth: P, the answer's quality in [0, 1].
        usd: the cost of the call.
    """

    text: str | None
    form: str
    features: F32
    certainty: float
    worth: float
    usd: float


#: Makes calls, possibly concurrently, and returns the replies in the same order.
Asker = Callable[[Sequence[ChainCall]], Sequence[ChainReply]]


class LiveEnvironment:
    """Replies of endpoints to Q queries, asked once and remembered, for training DER.

    Args:
        queries: (Q, `QUERY`) features of the queries' text.
        names: the names of the N endpoints.
        ask: makes the calls.

    Attributes:
        columns: (N, 2) "accuracy" and "price" as the policy sees them (`STEP_ENDPOINT`); zeros at first.
    """

    def __init__(self, queries: F32, names: Sequence[str], ask: Asker) -> None:
        self.queries = queries
        self.names = tuple(names)
        self.columns: F32 = np.zeros((len(self.names), 2), np.float32)
        self._ask = ask
        self._known: dict[ChainCall, ChainReply] = {}

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of queries, the number of endpoints, and the width of the state."""
        n = len(self.names)
        return len(self.queries), n, width(STEP) + n * width(STEP_ENDPOINT)

    @cached_property
    def unit(self) -> float:
        """Mean USD of asking every endpoint once; reading it makes all these calls."""
        calls = [ChainCall(q, i, None) for q in range(len(self.queries)) for i in range(len(self.names))]
        return sum(reply.usd for reply in self.replies(calls)) / len(self.queries)

    def replies(self, calls: Sequence[ChainCall]) -> list[ChainReply]:
        """Return the replies to these calls; only new calls are made."""
        new = [call for call in dict.fromkeys(calls) if call not in self._known]
        if new:
            self._known.update(zip(new, self._ask(new), strict=True))
        return [self._known[call] for call in calls]

    def start(self, rows: I64, max_steps: int, rng: np.random.Generator | None) -> LiveRoutes:
        """Start one route for each of these queries; in training (``rng`` given) the columns get noise."""
        columns = self.columns
        if rng is not None:
            columns = (columns + _JITTER * rng.standard_normal(columns.shape)).astype(np.float32)
        return LiveRoutes(self, rows, max_steps, columns)


class LiveRoutes:
    """B unfinished routes; their state is that of `focalroute.serving.sequential.SequentialAsk`."""

    def __init__(self, environment: LiveEnvironment, rows: I64, max_steps: int, columns: F32) -> None:
        size, n = len(rows), len(environment.names)
        self._environment, self._rows, self._max_steps, self._columns = environment, rows, max_steps, columns
        self._last: list[ChainReply | None] = [None] * size
        self._latest = np.full(size, -1)
        self._asked, self._failed = np.zeros((size, n)), np.zeros((size, n), np.bool_)
        self._forms: list[list[str]] = [[] for _ in range(size)]

    def state(self, step: int) -> F32:
        """Return the policy's input before this step, (B, D)."""
        answers = np.zeros((len(self._rows), ANSWER), np.float32)
        figures = np.zeros((len(self._rows), 5), np.float32)
        for row, reply in enumerate(self._last):
            if reply is not None:
                forms = self._forms[row]
                answers[row] = reply.features
                agreeing, repeated = forms.count(reply.form) / len(forms), forms[-2:] == [reply.form] * 2
                figures[row, :-1] = (1, agreeing, repeated, reply.certainty)
        figures[:, -1] = step / self._max_steps
        last = np.arange(self._asked.shape[1]) == self._latest[:, None]
        columns = [np.broadcast_to(column, last.shape) for column in self._columns.T]
        endpoints = [last.astype(np.float32), (self._asked / self._max_steps).astype(np.float32), *columns]
        return flat(*stacked(self._environment.queries[self._rows], answers, figures, endpoints))

    def offered(self, step: int) -> Bools:
        """Return the valid actions, (B, N + 1): ask an endpoint that has not failed, or stop given an answer."""
        answered = np.array([reply is not None for reply in self._last])
        return np.concatenate([~self._failed, answered[:, None]], axis=1)

    def ask(self, rows: I64, endpoints: I64) -> tuple[F32, F32]:
        """Ask one endpoint on each of these routes, showing it the route's last answer; return worths and USD."""
        calls = []
        for row, endpoint in zip(rows.tolist(), endpoints.tolist(), strict=True):
            last = self._last[row]
            calls.append(ChainCall(int(self._rows[row]), endpoint, last and last.text))
        replies = self._environment.replies(calls)
        for row, endpoint, reply in zip(rows.tolist(), endpoints.tolist(), replies, strict=True):
            self._asked[row, endpoint] += 1
            if reply.text is None:
                self._failed[row, endpoint] = True
            else:
                self._last[row], self._latest[row] = reply, endpoint
                self._forms[row].append(reply.form)
        worth = [np.nan if reply.text is None else reply.worth for reply in replies]
        return np.array(worth, np.float32), np.array([reply.usd for reply in replies], np.float32)


@contextmanager
def over_http(endpoints: Sequence[Endpoint], queries: Sequence[LiveQuery]) -> Iterator[Asker]:
    """Yield an asker that calls the endpoints as asks do, with rate limits, retries and capability checks."""
    with ExitStack() as stack:
        alone = [stack.enter_context(Ensemble([endpoint], policy="best-single")) for endpoint in endpoints]

        def ask(calls: Sequence[ChainCall]) -> list[ChainReply]:
            found: dict[ChainCall, ChainReply] = {}
            for i, ensemble in enumerate(alone):
                mine = [call for call in calls if call.endpoint == i]
                asks = [_arguments(query_of(queries[call.query], call.shown)) for call in mine]
                answers = ensemble.ask_many(asks, concurrency=_CONCURRENCY, return_exceptions=True)
                for call, answer in zip(mine, answers, strict=True):
                    reply = answer.replies[-1] if isinstance(answer, Answer) else Reply(endpoints[i].name)
                    found[call] = reply_of(queries[call.query], reply)
            return [found[call] for call in calls]

        yield ask


def query_of(live: LiveQuery, text: str | None) -> Query:
    """Return the query that shows this answer's text; None: the query as it is."""
    return live.query if text is None else show_answer(live.query, text)


def reply_of(live: LiveQuery, reply: Reply) -> ChainReply:
    """Return an endpoint's reply as that of a chain's step."""
    form = live.form(reply) if reply.ok and reply.text is not None else None
    usd = float(reply.cost or 0)
    if form is None:
        return ChainReply(None, "", np.zeros(ANSWER, np.float32), 0.0, 0.0, usd)
    certainty = 0.0
    if reply.probabilities is not None and reply.choice is not None:
        certainty = reply.probabilities[reply.choice]
    return ChainReply(
        format_answer(live.query, reply), form, text_features(form, ANSWER), certainty, live.worth(form), usd
    )
