"""The queries of a live evaluation, what an answer to one is worth, and strategies played on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from focalroute.answers import AnswerKind, normal_form
from focalroute.core.errors import ConfigError
from focalroute.core.receipts import Answer
from focalroute.core.records import Query, Reply
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.replay import ReplayResult
from focalroute.serving.query import make_query
from focalroute.serving.sync import Ensemble
from focalroute.sim import Question

_AT_A_TIME = 8

#: (answer, reference) -> [0, 1]; see `focalroute.evaluate.quality`.
Quality = Callable[[str, str], float]


@dataclass(frozen=True, slots=True)
class LiveQuery:
    """One query with its right answer.

    Attributes:
        label: the right choice's text, or the right answer to a free-form question.
        quality: what a free-form answer is worth beside it; None: 1 if both have one normal form, else 0.
    """

    query: Query
    label: str
    quality: Quality | None = None

    def form(self, reply: Reply) -> str | None:
        """The answer in a usable reply: a choice's text, or a free-form answer's normal form."""
        if self.query.choices is not None:
            return None if reply.choice is None else self.query.choices[reply.choice]
        return normal_form(reply.text or "", self.query.answer)

    def worth(self, form: str | None) -> float:
        """What an answer is worth, in [0, 1]; none is worth nothing."""
        if form is None:
            return 0.0
        if self.query.choices is not None:
            return float(form == self.label)
        if self.quality is None:
            return float(form == normal_form(self.label, self.query.answer))
        return min(1.0, max(0.0, self.quality(form, self.label)))

    def of(self, answer: Answer) -> float:
        """What a fused answer is worth."""
        return self.worth(answer.value if self.query.choices else normal_form(answer.text, self.query.answer))


def read_queries(
    path: str | Path, *, answer: AnswerKind | None = None, quality: Quality | None = None
) -> tuple[LiveQuery, ...]:
    """Read queries in the outcome log's format; ``outputs`` are not needed, and not looked at.

    Args:
        path: of the file.
        answer: the kind of free-form answers (see `focalroute.AsyncEnsemble.ask`).
        quality: of free-form answers.

    Raises:
        ConfigError: the file breaks the format, or a query has no text or no label.
    """
    found = []
    for logged in read_log(path, answered=False):
        if not logged.messages or logged.label is None:
            missing = "label" if logged.messages else "prompt"
            raise ConfigError(f"{path}:{logged.line}: {missing}: is missing; it is needed to ask and to score")
        closed = logged.choices is not None
        query = make_query(logged.messages, choices=logged.choices, answer=None if closed else answer, task=logged.task)
        label = logged.choices[int(logged.label)] if logged.choices is not None else str(logged.label)
        found.append(LiveQuery(query, label, None if closed else quality))
    return tuple(found)


def of_questions(
    questions: Sequence[Question], *, answer: AnswerKind | None = None, quality: Quality | None = None
) -> tuple[LiveQuery, ...]:
    """Simulated questions: with their choices, or free-form where the kind of an ``answer`` is given."""
    return tuple(
        LiveQuery(
            make_query(q.text, choices=None if answer else q.choices, answer=answer, task=q.topic), q.answer, quality
        )
        for q in questions
    )


@dataclass(frozen=True, slots=True)
class LiveResult(ReplayResult):
    """What a strategy did, live.

    Attributes:
        tokens: endpoint -> (n,) tokens it read and wrote, as far as it told; who was never asked is missing.
    """

    tokens: Mapping[str, NDArray[np.int64]]


def play(
    ensemble: Ensemble, queries: Sequence[LiveQuery], advance: Callable[[int], object] = lambda _: None
) -> list[Answer | None]:
    """Its answers, None where it failed. After every eight their labels are given."""
    answers: list[Answer | None] = []
    for start in range(0, len(queries), _AT_A_TIME):
        batch = queries[start : start + _AT_A_TIME]
        asks = [{"query": list(q.query.messages), "choices": q.query.choices, "answer": q.query.answer} for q in batch]
        given = ensemble.ask_many(asks, concurrency=_AT_A_TIME, return_exceptions=True)
        for live, answer in zip(batch, given, strict=True):
            if not isinstance(answer, Answer):
                answers.append(None)
                continue
            answers.append(answer)
            if live.quality is None:
                ensemble.feedback(answer, label=live.label)
            else:
                ensemble.feedback(answer, reward=2 * live.of(answer) - 1)
        advance(len(batch))
    return answers


def cut(queries: Sequence[LiveQuery], answers: Sequence[Answer | None], steps: int | None = None) -> LiveResult:
    """What was played, or what it would have been after so many steps of a chain: its last usable reply until then.

    A rule that goes one endpoint at a time decides a step alike, whatever T_max is; so one play tells of all.
    """
    n = len(queries)
    worth, usd = np.zeros(n), np.zeros(n)
    made = [
        [] if answer is None else [call for call in answer.receipt.calls if steps is None or call.round <= steps]
        for answer in answers
    ]
    asked = np.zeros((n, max(map(len, made), default=0)), np.bool_)
    tokens: dict[str, NDArray[np.int64]] = {}
    for row, (live, answer, calls) in enumerate(zip(queries, answers, made, strict=True)):
        if answer is None:
            continue
        asked[row, : len(calls)] = True
        usd[row] = sum(float(call.cost or 0) for call in calls)
        for call in calls:
            if call.usage is not None:
                told = call.usage.prompt_tokens + call.usage.completion_tokens
                tokens.setdefault(call.endpoint, np.zeros(n, np.int64))[row] += told
        usable = [reply for reply, call in zip(answer.replies, calls, strict=False) if call.candidate is not None]
        if steps is None:
            worth[row] = live.of(answer)
        elif usable:
            worth[row] = live.worth(live.form(usable[-1]))
    return LiveResult(worth, usd, asked, tokens)


def joined(parts: Sequence[LiveResult]) -> LiveResult:
    """Several plays, of different queries, as one."""
    most = max(part.asked.shape[1] for part in parts)
    asked = [np.pad(part.asked, ((0, 0), (0, most - part.asked.shape[1]))) for part in parts]
    names = dict.fromkeys(name for part in parts for name in part.tokens)
    return LiveResult(
        np.concatenate([part.worth for part in parts]),
        np.concatenate([part.usd for part in parts]),
        np.concatenate(asked),
        {
            name: np.concatenate([part.tokens.get(name, np.zeros(len(part.worth), np.int64)) for part in parts])
            for name in names
        },
    )
