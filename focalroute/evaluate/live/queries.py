"""The queries of a live evaluation, and what an answer to one is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from focalroute.answers import AnswerKind, normal_form
from focalroute.core.errors import ConfigError
from focalroute.core.receipts import Answer
from focalroute.core.records import Query, Reply
from focalroute.evaluate.outcomes import read_log
from focalroute.serving.query import make_query
from focalroute.sim import Question

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
