"""Strategies played through the ensemble, every query answered before its label is given; and chains cut short."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from focalroute.core.receipts import Answer
from focalroute.evaluate.live.queries import LiveQuery
from focalroute.evaluate.replay import ReplayResult
from focalroute.serving.sync import Ensemble

_AT_A_TIME = 8

Answers = Sequence[Answer | None]


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


def cut(queries: Sequence[LiveQuery], answers: Answers, steps: int | None = None) -> LiveResult:
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
