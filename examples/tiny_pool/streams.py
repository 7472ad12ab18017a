"""Streams of questions through an ensemble over HTTP, each answered before its feedback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from focalroute import AsyncEnsemble, Budget, Endpoint
from focalroute.core.errors import PoolError
from focalroute.evaluate.replay import ReplayResult
from focalroute.sim import Question, stream

__all__ = ["UPDATE_EVERY", "Feedback", "Live", "fresh"]

Feedback = Literal["label", "reward"]

#: Feedbacks between two updates in the background.
UPDATE_EVERY = 100


def fresh(n: int, seed: int, topics: Sequence[str], seen: set[str]) -> list[Question]:
    """Return ``n`` questions that are not in ``seen``, and add them to it."""

    def unseen() -> Iterator[Question]:
        for question in stream(20 * n, seed=seed, topics=topics):
            if question.id not in seen:
                seen.add(question.id)
                yield question

    return list(islice(unseen(), n))


@dataclass(slots=True)
class Live:
    """One way to serve a stream, with the result of each question.

    Attributes:
        names: all endpoints that ever belong to the pool.
        folder: has its policy bundles and its store.
        usd_per_query: the mean cost to hold.
        unanswered: questions for which `PoolError` was raised.
        failed_calls: calls that failed, though their questions may have been answered.
        version: the version of the policy that served the last question.
        ledger_usd: all cost, including that of exploration, which is on no receipt.
    """

    names: Sequence[str]
    folder: Path
    feedback: Feedback
    seed: int
    usd_per_query: float
    right: list[float] = field(default_factory=list)
    usd: list[float] = field(default_factory=list)
    asked: list[list[bool]] = field(default_factory=list)
    unanswered: int = 0
    failed_calls: int = 0
    version: int = 0
    ledger_usd: float = 0.0

    async def serve(self, pool: Sequence[Endpoint], questions: Sequence[Question]) -> None:
        """Answer these with this pool; a later call continues with the same store and policy, as after a restart."""
        async with AsyncEnsemble(
            pool,
            policy=self.folder,
            store=self.folder.with_suffix(".db"),
            seed=self.seed,
            budget=Budget(usd_per_query=self.usd_per_query),
            update_every=UPDATE_EVERY,
        ) as ensemble:
            for question in questions:
                await self._one(ensemble, question)
            self.ledger_usd = float(ensemble.stats().cost or 0)

    def played(self) -> ReplayResult:
        """Return the results in the form of a replay, to compare with other strategies."""
        return ReplayResult(np.array(self.right), np.array(self.usd), np.array(self.asked))

    async def _one(self, ensemble: AsyncEnsemble, question: Question) -> None:
        try:
            answer = await ensemble.ask(question.text, choices=question.choices)
        except PoolError:
            self.unanswered += 1
            self._put(0.0, 0.0, ())
            return
        right = answer.choice == question.label
        paid = sum(float(reply.cost or 0) for reply in answer.replies)  # a call that fails here costs nothing
        self._put(float(right), paid, [reply.endpoint for reply in answer.replies])
        self.failed_calls += sum(not reply.ok for reply in answer.replies)
        self.version = answer.receipt.policy_version
        if self.feedback == "label":
            await ensemble.feedback(answer, label=question.answer)
        else:
            await ensemble.feedback(answer, reward=bool(right))

    def _put(self, right: float, usd: float, endpoints: Sequence[str]) -> None:
        self.right.append(right)
        self.usd.append(usd)
        self.asked.append([name in endpoints for name in self.names])
